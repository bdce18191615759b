"""Certification of rows: gold, empty and hostile submissions."""
