"""Parsers of what test runners write: one module per format."""
