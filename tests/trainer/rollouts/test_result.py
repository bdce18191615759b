"""Classification of ended clients: samples, failures with their boundaries, alarms."""

import signal

import pytest

from trainer.records import Trace
from trainer.rollouts.process import ClientExit, ClientSession, ErrorRecord
from trainer.rollouts.result import to_result

SESSION = ClientSession("group.1", "group", "train")


def result(exit_code=0, output=None, log="", calls=2, overdue=False, error=None):
    return to_result(SESSION, ClientExit(exit_code, output, log, error), Trace((), calls), 1.0, overdue)


def output(reward, **metadata):
    return {"reward": reward, "metadata": {"exit_status": "Submitted", "n_calls": 2} | metadata}


def test_a_completed_session_is_a_sample_with_the_servers_metadata():
    done = result(output=output(0.5, submission="diff"))
    sample = done.sample
    assert done.failure is None and done.alarm == ""
    assert (sample.reward, sample.exit_status, sample.metadata["submission"]) == (0.5, "Submitted", "diff")


@pytest.mark.parametrize("exit_code", [1, 2, 75, 143, -signal.SIGKILL, 127])
def test_a_client_that_did_not_exit_0_never_yields_a_reward(exit_code):
    done = result(exit_code, output(1.0))
    assert done.sample is None and done.failure is not None


@pytest.mark.parametrize("reward", [None, "1", True, float("nan"), float("inf"), [1]])
def test_only_a_finite_number_is_a_reward(reward):
    done = result(output=output(reward))
    assert done.sample is None and done.failure.code == "no_output"


def test_missing_output_is_a_failure_that_quotes_the_last_log_line():
    done = result(output=None, log="first\nlast line")
    assert done.failure.code == "no_output" and "last line" in str(done.failure)


def test_exit_codes_map_to_failure_classes():
    assert result(75).failure.code == "server_unreachable"
    assert result(143).failure.code == "cancelled"
    assert result(0, output(1.0), overdue=True).failure.code == "client_timeout"


def test_without_an_error_file_the_exit_code_and_the_last_log_line_remain():
    failure = result(1, log='first\nit broke: {"boundary": "sandbox", "code": "sandbox_died"}').failure
    assert (failure.boundary, failure.code) == ("server", "session_failed")
    assert "exited 1: it broke" in str(failure) and "first" not in str(failure)
    assert "it printed nothing" in str(result(1).failure)


def test_a_failed_session_has_the_boundary_code_and_message_of_the_error_file():
    error = ErrorRecord(boundary="sandbox", code="sandbox_died", message="the sandbox {died}")
    failure = result(1, log="first\nlast line", error=error).failure
    assert (failure.boundary, failure.code) == ("sandbox", "sandbox_died")
    assert "the sandbox {died}" in str(failure) and "last line" not in str(failure)


@pytest.mark.parametrize("exit_code, code", [(75, "server_unreachable"), (143, "cancelled"), (0, "no_output")])
def test_an_error_file_gives_the_message_where_the_exit_code_gives_the_class(exit_code, code):
    error = ErrorRecord(boundary="sandbox", code="sandbox_died", message="the reason")
    failure = result(exit_code, log="last line", error=error).failure
    assert failure.code == code and "the reason" in str(failure) and "last line" not in str(failure)


def test_an_error_file_beside_a_reward_changes_nothing():
    error = ErrorRecord(boundary="client", code="x", message="left over")
    assert result(output=output(1.0), error=error).sample.reward == 1.0


def test_a_trace_with_fewer_calls_than_the_server_counted_is_a_failure():
    done = result(output=output(1.0, n_calls=5))
    assert done.sample is None and done.failure.code == "trace_incomplete"


def test_more_calls_than_counted_are_an_alarm():
    done = result(output=output(1.0, n_calls=1))
    assert done.sample.reward == 1.0 and "captured 2" in done.alarm
