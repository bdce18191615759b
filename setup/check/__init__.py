"""Check of a node against what the agent server needs."""
