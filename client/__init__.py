"""The contract shared by trainer and agent server: its types, errors and checks, and the clients.

Invariant: imports neither of the two sides; needs only the standard library, requests and pydantic.
"""
