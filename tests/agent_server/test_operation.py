"""Operation of a running server: metrics, limits, queue, drain, retention."""

import json
import os
import signal

import pytest
import requests

from agent_server.sandboxes.processes import read_process
from client.api import AgentServerClient
from client.errors import ServerBusy
from client.wire import SessionRequest
from tests.agent_server.conftest import FIX, TASK, eventually
from tests.scripted_model import Hang


def metric(server, name: str) -> float:
    """The value of one sample, by its name and labels in the exposition."""
    for line in requests.get(f"{server.url}/metrics", timeout=5).text.splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[-1])
    return 0.0


def running(server) -> int:
    return requests.get(f"{server.url}/healthz", timeout=5).json()["sessions"].get("train", {}).get("running", 0)


def test_limits_change_while_sessions_run(own_server, model):
    server = own_server(AGENT_SERVER_TRAIN_CONCURRENCY="1")
    limits = f"{server.url}/limits"
    sessions = [server.create(model, [Hang(120.0)]) for _ in range(4)]
    eventually(lambda: running(server) == 1)
    assert (
        requests.patch(limits, headers=server.control, json={"train": 3}, timeout=5).json()["train"]
        == 3
        == requests.get(limits, timeout=5).json()["train"]
    )
    eventually(lambda: running(server) == 3, what="two more admitted")
    requests.patch(limits, headers=server.control, json={"train": 1}, timeout=5)
    server.client.cancel(sessions[0])
    eventually(lambda: running(server) == 2, what="nothing is killed, nothing admitted")
    assert server.client.get(sessions[3]).status == "queued"
    for session in sessions[1:3]:
        server.client.cancel(session)
    eventually(lambda: server.client.get(sessions[3]).status == "running", what="the last one, in its turn")
    server.client.cancel(sessions[3])


@pytest.mark.parametrize(
    "body, field",
    [
        ({"tran": 3}, "tran"),
        ({"train": 0}, "train"),
        ({"train": "3"}, "train"),
        ({"train": True}, "train"),
        ({"eval": 10**9}, "eval"),
        ({}, None),
        ([], None),
    ],
)
def test_a_wrong_limit_is_refused_by_its_name(server, body, field):
    before = requests.get(f"{server.url}/limits", timeout=5).json()
    answer = requests.patch(f"{server.url}/limits", headers=server.control, json=body, timeout=5)
    assert answer.status_code == 400 and answer.json()["error"].get("field") == field
    assert requests.get(f"{server.url}/limits", timeout=5).json() == before


def test_a_full_queue_answers_429_with_retry_after(own_server, model):
    server = own_server(AGENT_SERVER_TRAIN_CONCURRENCY="1", AGENT_SERVER_QUEUE_LIMIT="2")
    first = server.create(model, [Hang(120.0)], key="first")
    eventually(lambda: server.client.get(first).status == "running")
    for key in ("second", "third"):
        server.create(model, [FIX], key=key)
    body = {
        "session_id": "fourth",
        "group_id": "g",
        "mode": "train",
        "base_url": model.url,
        "api_key": "fourth",
        "task_id": TASK,
    }
    answer = requests.post(f"{server.url}/sessions", json=body, timeout=5)
    assert (
        answer.status_code == 429
        and int(answer.headers["Retry-After"]) > 0
        and answer.json()["error"]["code"] == "busy"
    )
    repeated = body | dict.fromkeys(("session_id", "group_id", "api_key"), "third")
    assert requests.post(f"{server.url}/sessions", json=repeated, timeout=5).status_code == 200
    with pytest.raises(ServerBusy):
        AgentServerClient(server.url, busy_s=1.0).create(SessionRequest(**body))
    model.scripts["fourth"] = [FIX]
    patient = server.client
    server.client.cancel(first)
    assert patient.wait(patient.create(SessionRequest(**body)), timeout_s=60).reward == 1.0


def test_a_worker_lost_before_its_first_model_call_is_replaced(own_server, model):
    server = own_server(AGENT_SERVER_SANDBOX_STARTS="1")
    hold = [server.create(model, [FIX], key=f"s{n}") for n in range(6)]
    victim = hold[-1]
    eventually(lambda: server.worker(victim), what="a worker that waits for the semaphore")
    os.kill(server.worker(victim), signal.SIGKILL)
    views = [server.client.wait(session, timeout_s=60) for session in hold]
    assert [view.reward for view in views] == [1.0] * 6
    assert len(model.requests["s5"]) == 2, "the model saw one conversation"
    assert metric(server, 'agent_server_retries_total{code="worker_lost"}') == 1.0


def test_a_drained_server_hands_its_sessions_to_the_next(own_server, model):
    server = own_server(AGENT_SERVER_DRAIN_TIMEOUT_S="1", AGENT_SERVER_TRAIN_CONCURRENCY="1")
    at_work = server.create(model, [f"{FIX}\nsleep 4"], key="at work")
    queued = server.create(model, [FIX], key="queued")
    eventually(lambda: "at work" in model.requests, what="at work")
    worker = server.worker(at_work)
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: requests.get(f"{server.url}/readyz", timeout=5).status_code == 503, what="not ready any more")
    body = {"session_id": "late", "group_id": "g", "mode": "train", "base_url": model.url, "api_key": "late"}
    refused = requests.post(f"{server.url}/sessions", json=body, timeout=5)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "stopping") and refused.headers[
        "Retry-After"
    ]
    held = requests.get(f"{server.url}/sessions/{at_work}?wait=60", timeout=20).json()
    assert held["status"] == "running", "a long poll is answered before the server ends"
    server.process.wait(timeout=20)
    assert read_process(worker) is not None, "the worker goes on"
    again = own_server(server.work_dir, AGENT_SERVER_TRAIN_CONCURRENCY="1")
    assert again.client.wait(at_work, timeout_s=30).reward == 1.0 and again.worker(at_work) == worker
    assert again.client.wait(queued, timeout_s=30).reward == 1.0


def test_a_server_with_nothing_to_do_drains_at_once(own_server):
    server = own_server(AGENT_SERVER_DRAIN_TIMEOUT_S="60")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=10) == 0


def test_records_expire_and_files_stay(own_server, model):
    server = own_server(AGENT_SERVER_RECORD_RETENTION_S="1")
    view = server.run(model, [FIX])
    assert server.client.get(view.session_id) == view
    eventually(
        lambda: requests.get(f"{server.url}/sessions/{view.session_id}", timeout=5).status_code == 404,
        what="record expired",
    )
    assert (server.work_dir / "trajectories" / f"{view.session_id}.traj.json").exists()


def test_metrics_events_and_log_show_a_session(own_server, model):
    server = own_server()
    view = server.run(model, [FIX], key="seen")
    assert {"queue", "gates", "sandbox_start", "prepare", "agent", "commands", "model", "grading"} <= set(view.seconds)
    assert {"sandbox_start", "agent", "commands", "grading", "tests"} <= set(
        view.cpu_seconds
    ) and view.peak_memory_bytes > 10**7
    assert view.cpu_seconds["tests"] > 0.1, "running pytest takes CPU time"
    assert metric(server, 'agent_server_sessions_ended_total{mode="train",status="completed"}') == 1.0
    assert metric(server, 'agent_server_sessions_resolved_total{mode="train"}') == 1.0
    assert metric(server, 'agent_server_sessions{mode="train",status="completed"}') == 1.0
    assert metric(server, 'agent_server_phase_seconds_count{phase="grading"}') == 1.0
    assert metric(server, "agent_server_ready") == 1.0 and metric(server, "process_resident_memory_bytes") > 10**7
    hanging = server.create(model, [Hang(60.0)], key="hanging while seen")
    eventually(lambda: "hanging while seen" in model.requests)
    assert metric(server, "agent_server_live_sandboxes") >= 1.0
    server.client.cancel(hanging)
    eventually(lambda: metric(server, 'agent_server_sessions_ended_total{mode="train",status="cancelled"}') == 1.0)
    events = [json.loads(line) for line in (server.work_dir / "events.jsonl").read_text().splitlines()]
    names = [event["name"] for event in events if event["session_id"] == view.session_id]
    assert [name for name in names if name != "waiting"] == [
        "queued",
        "admitted",
        "model_called",
        "grading",
        "completed",
    ]
    assert events[0]["group_id"] == "seen" and [event["id"] for event in events] == sorted(
        {event["id"] for event in events}
    )
    log = [
        json.loads(line)
        for line in (server.work_dir.parent / "work.log").read_text().splitlines()
        if line.startswith("{")
    ]
    assert any(line.get("session_id") == view.session_id and line.get("group_id") == "seen" for line in log)


def test_a_long_poll_ends_although_the_event_log_cannot_be_written(own_server, model):
    server = own_server()
    events = server.work_dir / "events.jsonl"
    events.unlink(missing_ok=True)
    events.mkdir()
    session = server.create(model, [FIX], key="unlogged")
    assert server.client.wait(session, timeout_s=20).reward == 1.0
    events.rmdir()
    eventually(lambda: events.is_file() and '"completed"' in events.read_text(), what="the events are published later")


def test_a_group_over_the_limit_is_warned_of_once(own_server, model):
    server = own_server(AGENT_SERVER_TRAIN_CONCURRENCY="1")
    sessions = [server.create(model, [Hang(60.0)], group_id="large") for _ in range(4)]
    log = server.work_dir.parent / "work.log"
    eventually(lambda: "raise AGENT_SERVER_TRAIN_CONCURRENCY" in log.read_text())
    assert log.read_text().count("raise AGENT_SERVER_TRAIN_CONCURRENCY") == 1
    for session in sessions:
        server.client.cancel(session)
