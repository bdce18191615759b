"""Executors: they start, watch and end workers."""
