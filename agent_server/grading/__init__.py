"""Grades submissions: patch, protected files, tests, outcomes, reward."""
