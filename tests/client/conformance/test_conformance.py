"""Conformance checks: a correct server passes all, a server with one fault fails that fault's check and no other."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from client.conformance import __main__ as conformance
from client.conformance.__main__ import FAILS, HOLDS, LACKS, Result
from client.conformance.checks import CHECKS
from client.conformance.grades import Grade
from client.conformance.model import serving_model
from client.conformance.server import Server
from tests.agent_server.conftest import free_port
from tests.client.conformance.stub_server import TOKEN, serving_stub

FAULTS = {
    "201 for 200": "create",
    "second session while running": "create_again",
    "second session while queued": "create_at_once",
    "second session after the end": "create_after_end",
    "another request is the first": "create_differently",
    "unknown fields refused": "unknown_fields",
    "500 on bad JSON": "bad_json",
    "unknown mode accepted": "missing_fields",
    "any type accepted": "wrong_types",
    "an error is a text": "error_object",
    "called without /v1": "model_path",
    "the key is told": "key_hidden",
    "field not named": "field_named",
    "client id left out": "get_fields",
    "holds without wait": "no_wait",
    "wait ignored": "wait",
    "wait answers late": "wait",
    "terminal answer forgotten": "terminal_repeats",
    "terminal answer changes": "terminal_repeats",
    "unknown session is 200": "unknown_session",
    "a submission fails": "completes",
    "completed without a reward": "completed_fields",
    "no model scores 0": "unreachable_model",
    "failed with a reward": "failed_fields",
    "failed with exit code 2": "failed_fields",
    "cancelled with exit code 1": "cancelled_fields",
    "cancel answers 409 after the end": "cancel",
    "a cancel changes the end": "cancel_after_end_changes_nothing",
    "cancelled late": "cancelled_in_time",
    "model calls go on": "model_calls_stop",
    "key not sent": "model_call",
    "path of base_url dropped": "model_call",
    "a row for each sample": "group",
    "token ignored": "token_required",
    "health requires the token": "health_open",
}


def results_for(fault: str) -> dict[str, Result]:
    with serving_stub(fault, TOKEN) as url, serving_model("127.0.0.1") as model:
        server = Server(url, model, token=TOKEN, session_timeout_s=20.0, watch_s=0.6)
        return {result.check: result for result in conformance.run(server)}


@pytest.fixture(scope="module")
def results_by_fault() -> dict[str, dict[str, Result]]:
    """Every stub's results by fault. Six run at a time: they mostly wait. All end before the first test begins: pytest
    changes os.environ between tests, which breaks a thread that reads it at that moment, as `requests` does."""
    faults = ("", *FAULTS)
    with ThreadPoolExecutor(6) as threads:
        return dict(zip(faults, threads.map(results_for, faults), strict=True))


def test_a_correct_server_passes_every_check(results_by_fault: dict[str, dict[str, Result]]):
    results = results_by_fault[""]
    assert not [str(result) for result in results.values() if result.verdict != HOLDS] and len(results) == len(CHECKS)


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_fails_one_check(results_by_fault: dict[str, dict[str, Result]], fault):
    failing = [result for result in results_by_fault[fault].values() if result.verdict in (FAILS, LACKS)]
    assert [result.check for result in failing] == [FAULTS[fault]], "\n".join(map(str, failing))
    assert failing[0].detail and (failing[0].verdict == LACKS) == (failing[0].grade == Grade.OURS)


def test_every_check_can_fail():
    assert set(FAULTS.values()) == {check.__name__ for check in CHECKS}


def test_an_unreachable_server_is_reported(capsys):
    assert conformance.main([f"http://127.0.0.1:{free_port()}"]) == 75
    assert "is the agent server up?" in capsys.readouterr().err


def test_our_agent_server_conforms(own_server, capsys):
    """Real gunicorn and sandboxes, an agent that calls tools (the stub's reads text), one session at a time."""
    server = own_server(AGENT_SERVER_TOKEN=TOKEN, AGENT_SERVER_AGENT_CONFIG="tools", AGENT_SERVER_TRAIN_CONCURRENCY="1")
    code = conformance.main([server.url, "--token", TOKEN])
    table = capsys.readouterr().out
    with capsys.disabled():
        print(f"\n{table}")
    assert code == 0 and "0 fail, 0 lacking, 0 inconclusive" in table, table
