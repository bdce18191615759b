"""Where a session's worker runs."""
