"""Evaluation of a split without a trainer."""
