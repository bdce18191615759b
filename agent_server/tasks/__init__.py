"""Task rows and their order."""
