"""Checks of a server with a token."""

from client.conformance.grades import Grade
from client.conformance.server import Check, Inconclusive, Server, describe, expect


def token_required(server: Server) -> None:
    """without the token, or with a wrong one, every call is 401"""
    if not server.token:
        raise Inconclusive("no --token was given")
    for token in ("", f"{server.token}x"):
        for method, path in (
            ("POST", "/sessions"),
            ("GET", "/sessions/conformance-none"),
            ("POST", "/sessions/conformance-none/cancel"),
        ):
            response = server.call(method, path, token=token, json={} if method == "POST" else None)
            expect(response.status_code == 401, f"{method} {path}: {describe(response)}")


def health_open(server: Server) -> None:
    """health needs no token"""
    if not server.token:
        raise Inconclusive("no --token was given")
    response = server.call("GET", "/healthz", token="")
    if response.status_code == 404:
        raise Inconclusive("there is no /healthz")
    expect(response.status_code not in (401, 403), describe(response))


CHECKS: dict[Check, Grade] = {token_required: Grade.OURS, health_open: Grade.OURS}
