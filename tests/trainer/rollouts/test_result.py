"""What counts as a sample, and what is a failure whatever the output says."""

import json
import signal

import pytest

from trainer.records import Trace
from trainer.rollouts.process import ClientExit, Session
from trainer.rollouts.result import to_result

SESSION = Session("group.1", "group", "train")


def finished(exit_code=0, output=None, log="", calls=2, overdue=False):
    return to_result(SESSION, ClientExit(exit_code, output, log), Trace((), calls), 1.0, overdue)


def output(reward, **metadata):
    return {"reward": reward, "metadata": {"exit_status": "Submitted", "n_calls": 2} | metadata}


def test_a_finished_session_is_a_sample_with_the_servers_words():
    done = finished(output=output(0.5, submission="diff"))
    assert done.failure is None and done.alarm == ""
    assert (done.sample.reward, done.sample.exit_status, done.sample.metadata["submission"]) == (
        0.5,
        "Submitted",
        "diff",
    )


@pytest.mark.parametrize("exit_code", [1, 2, 75, 143, -signal.SIGKILL, 127])
def test_a_client_that_did_not_exit_0_never_yields_a_reward(exit_code):
    done = finished(exit_code, output(1.0))
    assert done.sample is None and done.failure is not None


@pytest.mark.parametrize("reward", [None, "1", True, float("nan"), float("inf"), [1]])
def test_only_a_finite_number_is_a_reward(reward):
    done = finished(output=output(reward))
    assert done.sample is None and done.failure.code == "no_output"


def test_no_output_is_a_failure_and_quotes_the_clients_last_line():
    done = finished(output=None, log="first\nlast words")
    assert done.failure.code == "no_output" and "last words" in str(done.failure)


def test_the_failures_of_clients_keep_their_classes():
    assert finished(75).failure.code == "server_unreachable"
    assert finished(143).failure.code == "cancelled"
    assert finished(0, output(1.0), overdue=True).failure.code == "client_timeout"
    assert finished(1, log="agent_client: curl broke").failure.code == "session_failed"


def test_a_failed_session_keeps_the_servers_own_boundary():
    told = json.dumps({"boundary": "sandbox", "code": "sandbox_died", "message": "the sandbox {died}"})
    failure = finished(1, log=f"agent_client: session 1 failed: {told}").failure
    assert (failure.boundary, failure.code) == ("sandbox", "sandbox_died")


def test_a_trace_with_fewer_calls_than_the_server_counted_is_a_failure():
    done = finished(output=output(1.0, n_calls=5))
    assert done.sample is None and done.failure.code == "trace_incomplete"


def test_more_calls_than_counted_are_an_alarm():
    done = finished(output=output(1.0, n_calls=1))
    assert done.sample.reward == 1.0 and "captured 2" in done.alarm
