"""Queueing: which session starts when, and who is woken by what."""
