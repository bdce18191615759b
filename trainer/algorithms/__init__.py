"""Advantages and losses, as pure functions."""
