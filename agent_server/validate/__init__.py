"""Certifies rows: gold, empty and hostile submissions must get the expected grade."""
