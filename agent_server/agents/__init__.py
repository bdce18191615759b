"""Agents that can work on a session, each behind one adapter."""
