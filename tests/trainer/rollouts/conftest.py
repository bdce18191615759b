"""Fixtures for rollouts: a fake gateway, and managers that launch real client processes."""

import pytest

from trainer.interrupts import Interrupts
from trainer.records import Segment, Trace
from trainer.rollouts.manager import ClientSettings, RolloutManager

TRACE = Trace((Segment(-1, False, (1, 2)), Segment(0, True, (3, 4), (-0.1, -0.2), 0, "stop")), n_calls=1)
REWARDING = (
    """printf '{"reward": %s, "metadata": {"exit_status": "Submitted", "n_calls": 1}}' VALUE >$RELAX_OUTPUT_JSON"""
)


class FakeGateway:
    """A gateway at which every session has made one call when it is closed."""

    def __init__(self):
        self.opened: list[str] = []
        self.open_now: set[str] = set()
        self.trace = TRACE

    def open(self, session_id, key, sampling):
        self.opened.append(session_id)
        self.open_now.add(session_id)

    def close(self, session_id):
        self.open_now.remove(session_id)
        return self.trace

    def status(self):
        return {session_id: {"n_calls": 1, "in_flight": 0} for session_id in self.open_now}


@pytest.fixture
def gateway():
    return FakeGateway()


@pytest.fixture
def make_manager(gateway, tmp_path):
    """Factory of managers whose clients run a bash command; further keywords are settings."""

    def make(command: str, health_check=lambda: None, env=None, interrupts=None, **settings) -> RolloutManager:
        settings = {"timeout_s": 60, "kill_after_s": 5, "max_clients": 100, "max_tries": 3} | settings
        env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **(env or {})}  # HOME: no login profile in a test
        return RolloutManager(
            ClientSettings(command, "http://gateway", tmp_path / "sessions", env, **settings),
            gateway,
            interrupts or Interrupts(),
            health_check,
        )

    return make


@pytest.fixture
def rewarding():
    """Factory of bash commands for clients that complete with a reward."""
    return lambda reward: REWARDING.replace("VALUE", str(reward))
