"""Recovery: servers and workers are killed; no finished session is lost, and none runs twice."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import requests

from agent_server.sandboxes.processes import kill
from tests.agent_server.conftest import FIX, ROOT, eventually, free_port, read_or_empty
from tests.scripted_model import Hang


def kill_server(server) -> None:
    """SIGKILL gunicorn's processes and the fork server. Workers go on."""
    os.killpg(server.process.pid, signal.SIGKILL)  # workers have groups of their own
    server.process.wait()


def test_kill_minus_nine_and_restart(own_server, model):
    server = own_server(AGENT_SERVER_TRAIN_CONCURRENCY="2")
    finished = server.create(model, [FIX], key="finished")
    assert server.client.wait(finished, timeout_s=30).reward == 1.0
    running = server.create(model, [f"{FIX}\nsleep 6"], key="running")
    lost = server.create(model, ["sleep 100"], key="lost")
    queued = [server.create(model, [FIX], key=f"queued {n}") for n in range(3)]
    eventually(lambda: {"running", "lost"} <= set(model.requests), what="both at work")
    kill_server(server)
    os.killpg(server.worker(lost), signal.SIGKILL)

    again = own_server(
        server.work_dir, **{n: v for n, v in server.environment.items() if n.startswith("AGENT_SERVER_")}
    )
    assert again.client.get(finished).reward == 1.0
    view = again.client.wait(lost, timeout_s=30)
    assert (view.status, view.error["code"], view.reward) == ("failed", "worker_lost", None)
    assert again.client.wait(running, timeout_s=30).reward == 1.0
    assert [again.client.wait(session, timeout_s=60).reward for session in queued] == [1.0] * 3
    assert len(model.requests["running"]) == 2 and len(model.requests["finished"]) == 2  # nothing ran twice
    firsts = [model.requests[f"queued {n}"][0]["messages"][1]["content"] for n in range(3)]
    assert len(firsts) == 3


def test_a_killed_worker_is_a_failure_and_leaves_nothing(server, model):
    session = server.create(model, ["sleep 1000 & sleep 1000"], key="to be killed")
    eventually(lambda: server.runs(session, "sleep 1000"), what="the command runs")
    worker = server.worker(session)
    assert len(server.session_processes(worker)) > 3
    os.kill(worker, signal.SIGKILL)
    view = server.client.wait(session, timeout_s=10)
    assert (view.status, view.error["boundary"], view.error["code"]) == ("failed", "server", "worker_lost")
    eventually(lambda: not server.session_processes(worker), within_s=2.0, what="sandbox of the killed worker gone")
    eventually(lambda: not list((server.work_dir / "scratch").glob(f"{session}*")), what="scratch folder gone")


def test_a_killed_sandbox_is_a_failure(server, model):
    session = server.create(model, ["sleep 1000"], key="sandbox to be killed")
    eventually(lambda: server.runs(session, "sleep 1000"), what="the command runs")
    worker = server.worker(session)
    for pid in server.session_processes(worker):
        if pid != worker:
            kill(pid)
    view = server.client.wait(session, timeout_s=10)
    assert (view.status, view.error["boundary"], view.error["code"]) == ("failed", "sandbox", "sandbox_died")


def test_a_dead_fork_server_is_started_again(own_server, model):
    server = own_server()
    (fork_server,) = [pid for pid in server.processes() if b"fork_server" in read_or_empty(f"/proc/{pid}/cmdline")]
    os.kill(fork_server, signal.SIGKILL)
    assert server.run(model, [FIX]).reward == 1.0


def test_a_launch_that_fails_is_made_again_as_another_attempt(own_server, model):
    server = own_server()
    (fork_server,) = [pid for pid in server.processes() if b"fork_server" in read_or_empty(f"/proc/{pid}/cmdline")]
    os.kill(fork_server, signal.SIGSTOP)
    session = server.create(model, [FIX], key="launched twice")
    eventually(lambda: server.client.get(session).status == "running", what="admitted, and its launch under way")
    time.sleep(0.1)  # until the server waits for the fork server's answer, which no test can observe
    os.kill(fork_server, signal.SIGKILL)
    assert server.client.wait(session, timeout_s=30).reward == 1.0
    events = [json.loads(line) for line in (server.work_dir / "events.jsonl").read_text().splitlines()]
    assert [event["attempt"] for event in events if event["name"] == "admitted"] == [1, 2]
    assert [event["error"]["code"] for event in events if event["name"] == "retried"] == ["worker_lost"]


def test_interrupting_the_server_stops_its_sessions(own_server, model):
    server = own_server()
    session = server.create(model, [Hang(60.0)], key="stopped with the server")
    eventually(lambda: "stopped with the server" in model.requests)
    worker = server.worker(session)
    with ThreadPoolExecutor(1) as threads:  # a client's long poll
        answer = threads.submit(requests.get, f"{server.url}/sessions/{session}", params={"wait": "3600"}, timeout=60)
        time.sleep(0.5)  # until the server holds the long poll, which no test can observe
        server.process.send_signal(signal.SIGINT)
        server.process.wait(timeout=15)
        assert answer.result().json()["status"] == "cancelled"
    eventually(lambda: not server.processes() and not server.session_processes(worker), what="every process gone")
    again = own_server(server.work_dir)
    assert again.client.get(session).status == "cancelled"


def test_two_servers_cannot_share_a_work_directory(own_server, tmp_path):
    server = own_server()
    environment = server.environment | {"AGENT_SERVER_PORT": str(free_port())}
    second = subprocess.run(
        [sys.executable, "-m", "agent_server"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert second.returncode != 0 and "another agent server works in" in second.stderr
    assert requests.get(f"{server.url}/healthz", timeout=5).json()["ready"]
