"""Costs of a session add up by phase."""

import time

import pytest

from agent_server.sandboxes.base import ResourceUsage
from agent_server.worker.costs import SessionCosts


def test_a_phase_is_measured_also_when_it_fails():
    costs = SessionCosts()
    with costs.measure("prepare"):
        time.sleep(0.02)
    first = costs.seconds["prepare"]
    with pytest.raises(ValueError), costs.measure("prepare"):
        time.sleep(0.02)
        raise ValueError
    assert first >= 0.02 and costs.seconds["prepare"] >= first + 0.02 and costs.cpu_seconds["prepare"] < 0.04


def test_sandboxes_of_one_phase_add_up():
    """Grading and the canary run have a sandbox each; `tests` is the CPU time of both."""
    costs = SessionCosts()
    costs.add_sandbox("tests", ResourceUsage(2.0, 300))
    costs.add_sandbox("tests", ResourceUsage(0.5, 100))
    assert costs.cpu_seconds == {"tests": 2.5} and costs.peak_memory_bytes == 300
