"""Evaluations at an endpoint with rate limits, a used-up quota or other faults."""

import time

import pytest

from client.redaction import fingerprint
from tests.client.evaluation.command import TASK_A, TASK_B, TEXT, finish, read_lines, read_results, read_summary
from tests.client.evaluation.fake_endpoint import KEY, Fault

RATE_LIMIT = b'{"error": {"message": "slow down", "type": "rate_limit", "code": "rate_limit_exceeded"}}'
QUOTA = b"""{"error": {"message": "You exceeded your current quota",
                       "type": "insufficient_quota", "code": "insufficient_quota"}}"""


@pytest.mark.parametrize("headers", [{"Retry-After": "1"}, {"retry-after-ms": "300"}, {}])
def test_a_rate_limit_is_waited_out(evaluate, endpoint, tmp_path, headers):
    refused = []

    def fault(text: str, turn: int) -> Fault | None:
        if text and len(refused) < 3:
            refused.append(time.monotonic())
            return Fault(429, RATE_LIMIT, headers)
        return None

    endpoint.fault = fault
    finish(evaluate("--concurrency", "2", "--patience-s", "0.01"), 0)
    assert len(refused) == 3 and read_summary(tmp_path)["resolved"] == 2
    assert max(line["lost_s"] for line in read_results(tmp_path).values()) > 0.25


def test_a_used_up_quota_stops_the_run(evaluate, endpoint, server, tmp_path):
    """At once, for all samples. Finished samples stay; the others are neither scored nor lost."""
    endpoint.fault = lambda text, turn: (
        Fault(429, QUOTA, {"Retry-After": "1"}) if text == TEXT[TASK_B] and turn == 1 else None
    )
    _, err = finish(evaluate("--samples", "2", "--concurrency", "1"), 1)
    assert "quota is used up" in err and "run the same command again" in err
    assert endpoint.statuses.count(429) == 1 and endpoint.begun == {TEXT[TASK_A]: 1, TEXT[TASK_B]: 1}
    assert read_results(tmp_path)[TASK_A, 0]["reward"] == 1.0
    failed = read_results(tmp_path)[TASK_B, 0]
    assert "reward" not in failed and failed["error"]["code"] == "quota_exhausted"
    summary = read_summary(tmp_path)
    assert (summary["completed"], summary["not_run"], summary["pass_at"]["1"]["tasks"]) == (1, 2, 1)
    assert summary["failures"] == {"model/quota_exhausted": 1}
    assert server.client.get(failed["session_id"]).status == "cancelled"

    endpoint.fault = lambda text, turn: None
    finish(evaluate("--samples", "2", "--concurrency", "1"), 0)
    assert (read_summary(tmp_path)["resolved"], read_summary(tmp_path)["failures"]) == (4, {})


FAULTS = {
    "500": (Fault(500), "endpoint_failed"),
    "503 with Retry-After": (Fault(503, headers={"Retry-After": "1"}), "endpoint_failed"),
    "connection dropped": (Fault(drop=True), "model_unreachable"),
    "no answer in time": (Fault(hang_s=30), "model_unreachable"),
    "not JSON": (Fault(200, b"<html>"), "endpoint_failed"),
    "an error inside a 200": (Fault(200, b'{"error": {"message": "upstream", "code": 502}}'), "endpoint_failed"),
    "400 of another kind": (Fault(400, b'{"error": {"message": "unknown field", "code": "bad"}}'), "endpoint_refused"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_the_endpoint_are_never_scored(evaluate, endpoint, tmp_path, name):
    fault, code = FAULTS[name]
    endpoint.fault = lambda text, turn: fault if text == TEXT[TASK_B] and turn == 1 else None
    options = ("--patience-s", "1.5", "--call-timeout-s", "1")
    out, _ = finish(evaluate(*options), 1)
    assert read_results(tmp_path)[TASK_A, 0]["reward"] == 1.0
    failed = read_results(tmp_path)[TASK_B, 0]
    assert failed["status"] == "failed" and "reward" not in failed
    assert (failed["error"]["boundary"], failed["error"]["code"]) == ("model", code)
    summary = read_summary(tmp_path)
    assert (summary["completed"], summary["failures"]) == (1, {f"model/{code}": 1})
    assert summary["pass_at"]["1"] == {"value": 1.0, "low": None, "high": None, "tasks": 1}
    assert f"model/{code}" in out and TASK_B not in (tmp_path / "out" / "predictions-0.jsonl").read_text()

    endpoint.fault = lambda text, turn: None
    finish(evaluate(*options), 0)
    assert read_summary(tmp_path)["resolved"] == 2 and len(read_lines(tmp_path / "out" / "results.jsonl")) == 3


def test_a_key_that_the_endpoint_quotes_is_kept_nowhere(evaluate, endpoint, tmp_path):
    body = f'{{"error": {{"message": "Bearer {KEY} may not use this model"}}}}'.encode()
    endpoint.fault = lambda text, turn: Fault(403, body) if text else None
    out, err = finish(evaluate(), 1)
    failed = read_results(tmp_path)[TASK_A, 0]
    assert fingerprint(KEY) in failed["error"]["message"] and KEY not in out + err
    assert [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()] == []


def test_a_transient_fault_costs_nothing(evaluate, endpoint, tmp_path):
    faults = [Fault(500), Fault(drop=True), Fault(529)]
    endpoint.fault = lambda text, turn: faults.pop() if text and faults else None
    finish(evaluate("--concurrency", "1"), 0)
    assert not faults and read_summary(tmp_path)["resolved"] == 2


def test_an_endpoint_that_stays_down_stops_the_run(evaluate, endpoint, tmp_path):
    endpoint.fault = lambda text, turn: Fault(500) if text else None
    _, err = finish(evaluate("--samples", "4", "--concurrency", "1", "--patience-s", "0.1"), 1)
    assert "failed 3 samples in a row" in err
    assert read_summary(tmp_path)["not_run"] == 5 and read_summary(tmp_path)["pass_at"] == {}


def test_a_very_long_rate_limit_stops_the_run(evaluate, endpoint, tmp_path):
    endpoint.fault = lambda text, turn: Fault(429, headers={"Retry-After": "86400"}) if text == TEXT[TASK_B] else None
    _, err = finish(evaluate("--concurrency", "1"), 1)
    assert "it asks to wait 86400 s: run the same command again then" in err
    assert read_results(tmp_path)[TASK_A, 0]["reward"] == 1.0
    assert read_summary(tmp_path)["failures"] == {"model/rate_limited": 1}


def test_time_lost_to_rate_limits_is_not_scored(evaluate, endpoint, own_server, tmp_path):
    own = own_server(AGENT_SERVER_AGENT_TIMEOUT_S="6", AGENT_SERVER_COMMAND_TIMEOUT_S="5")
    limits = [Fault(429, headers={"Retry-After": "6"})]
    endpoint.fault = lambda text, turn: limits.pop() if text == TEXT[TASK_B] and limits else None
    finish(evaluate("--concurrency", "1", server_url=own.url), 1)
    assert read_results(tmp_path)[TASK_A, 0]["reward"] == 1.0
    failed = read_results(tmp_path)[TASK_B, 0]
    assert own.client.get(failed["session_id"]).agent_exit_status == "TimeExceeded"
    assert failed["error"]["code"] == "endpoint_failed" and read_summary(tmp_path)["completed"] == 1
