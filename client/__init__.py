"""The narrow waist between trainer and agent server: the contract, its errors, and the client processes.

Invariant: imports neither of the two sides; needs only the standard library, requests and pydantic.
"""
