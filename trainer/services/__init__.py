"""Child servers of a run."""
