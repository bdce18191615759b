"""A session's worker: one process that runs the agent, grades its submission and records the end."""
