"""Fixtures of the client's tests: a running agent server and its scripted model."""

from tests.agent_server.conftest import model, own_server, server  # noqa: F401 - fixtures
