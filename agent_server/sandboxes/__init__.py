"""Where commands run: one process tree a sandbox."""
