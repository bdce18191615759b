"""Task rows from a dataset hub."""
