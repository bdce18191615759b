"""Sandboxes: isolated process trees with limits, in which commands run."""
