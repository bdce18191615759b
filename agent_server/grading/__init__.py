"""Grading of submissions: patch, protected files, tests, outcomes, reward."""
