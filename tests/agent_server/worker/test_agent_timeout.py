"""Agents that outlast their time in a command or a model call end with the agent's own time-out."""

import json

import pytest

from tests.agent_server.conftest import FIX
from tests.scripted_model import SUBMIT, Hang

TIMED_OUT = ("completed", 0.0, "TimeExceeded", "", "no_submission")


def ending(view):
    return (view.status, view.reward, view.agent_exit_status, view.submission, view.grade and view.grade["status"])


@pytest.mark.slow
def test_a_call_that_straddles_the_limit_is_the_agents_time_out(own_server, model):
    """All sessions run at once. The worker interrupts them 5 s after the limit."""
    server = own_server(AGENT_SERVER_AGENT_TIMEOUT_S="9", AGENT_SERVER_COMMAND_TIMEOUT_S="9")
    scripts = {
        "command": [FIX, "sleep 6", "sleep 60"],
        "model call": [FIX, Hang(60.0)],
        "first model call": [Hang(60.0)],
        "within the grace": [FIX, "sleep 6", f"sleep 5; {SUBMIT}"],
        "between turns": [FIX, "sleep 60"],
    }
    sessions = {name: server.create(model, script, key=f"straddles {name}") for name, script in scripts.items()}
    views = {name: server.client.wait(session, timeout_s=90) for name, session in sessions.items()}
    assert ending(views["command"]) == TIMED_OUT and views["command"].n_calls == 3
    assert ending(views["model call"]) == TIMED_OUT and views["model call"].n_calls == 1
    assert ending(views["first model call"]) == TIMED_OUT and views["first model call"].n_calls == 0
    assert ending(views["between turns"]) == TIMED_OUT and views["between turns"].n_calls == 2
    accepted = views["within the grace"]
    assert (accepted.reward, accepted.agent_exit_status, accepted.n_calls) == (1.0, "Submitted", 3)
    for name in ("command", "model call"):
        trajectory = json.loads((server.work_dir / "trajectories" / f"{sessions[name]}.traj.json").read_text())
        assert trajectory["info"]["exit_status"] == "TimeExceeded"
        assert views[name].seconds["agent"] < 9 + 5 + 2


@pytest.mark.slow
def test_an_agent_class_that_never_ends_is_timed_out(own_server, model):
    server = own_server(
        AGENT_SERVER_AGENT="tests.agent_server.agents.custom_agent:EndlessAgent",
        AGENT_SERVER_AGENT_TIMEOUT_S="1",
        AGENT_SERVER_COMMAND_TIMEOUT_S="1",
    )
    view = server.run(model, [])
    assert ending(view) == TIMED_OUT and view.n_calls is None
