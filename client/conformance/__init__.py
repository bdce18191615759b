"""Conformance test of agent servers: the contract's rules, checked over HTTP."""
