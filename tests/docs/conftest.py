"""Fixtures of tests/agent_server for the commands of the documentation."""

from tests.agent_server.conftest import demo_image, model, nothing_mounted_behind, server  # noqa: F401 - fixtures
