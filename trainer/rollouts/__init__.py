"""Rollouts: groups of client processes, and the samples they return."""
