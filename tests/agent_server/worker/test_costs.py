"""Costs of a session add up by phase."""

import time

import pytest

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
