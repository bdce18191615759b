"""Checks a node against the needs of the agent server."""
