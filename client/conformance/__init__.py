"""Conformance test of agent servers."""
