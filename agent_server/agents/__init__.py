"""Agents that work on sessions, each behind one interface."""
