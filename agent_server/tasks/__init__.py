"""Task rows and who holds which."""
