"""Fixtures of the tests with Relax on the other side: a running agent server of ours and a scripted model."""

from tests.agent_server.conftest import model, own_server, server  # noqa: F401 - fixtures
