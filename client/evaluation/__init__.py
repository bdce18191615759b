"""Evaluation of a split's tasks without a trainer."""
