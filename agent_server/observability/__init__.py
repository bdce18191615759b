"""Observability: events, metrics, logs and the drift alarm."""
