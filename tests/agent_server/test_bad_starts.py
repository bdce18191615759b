"""Sessions that cannot be started, or whose worker hangs at its start, hold no slot and stop like any other."""

import json
import os
import signal

import pytest

from agent_server.sandboxes.processes import read_process
from tests.agent_server.conftest import DEMO, FIX, ROOT, ROW, eventually, read_or_empty
from tests.scripted_model import Hang

# An agent whose workers hang before their own code begins, and ignore SIGTERM.
HANGING_WORKERS = """
import os, pathlib, signal, time

def hang():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pathlib.Path({marks!r}, str(os.getpid())).touch()
    time.sleep(600)

os.register_at_fork(after_in_child=hang)

class Agent:
    def run(self, problem_statement, sandbox, endpoint, *, agent_timeout_s, command_timeout_s, trajectory, seconds):
        raise NotImplementedError
"""
# The mini agent, which once `slow` exists takes a minute to import.
SLOW_AT_RESTART = """
import pathlib, time
from agent_server.agents import mini
if pathlib.Path({slow!r}).exists():
    pathlib.Path({slow!r} + ".begun").touch()
    time.sleep(60)
mini.preload()

class Agent(mini.MiniAgent):
    def __init__(self):
        super().__init__(mini.load_config("text"))
"""


def test_rows_that_were_moved_away_fail_their_sessions_and_hold_no_slot(own_server, model, tmp_path):
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    for name in ("train.parquet", "eval.parquet"):
        (tasks / name).write_bytes((DEMO / "tasks" / name).read_bytes())
    server = own_server(R2E_DATA_PATH=str(tasks), AGENT_SERVER_TRAIN_CONCURRENCY="2")
    tasks.rename(tmp_path / "moved")
    views = [server.run(model, [FIX]) for _ in range(3)]
    assert {(view.status, view.error["boundary"], view.error["code"]) for view in views} == {
        ("failed", "config", "dataset")
    }
    assert "must stay as they were when the server started" in views[0].error["message"]
    (tmp_path / "moved").rename(tasks)
    assert server.run(model, [FIX]).reward == 1.0


@pytest.fixture
def hanging(own_server, tmp_path):
    """A server whose workers hang, and a function that waits for a session's worker, to return its pid."""
    marks = tmp_path / "marks"
    marks.mkdir()
    (tmp_path / "hanging_agent.py").write_text(HANGING_WORKERS.format(marks=str(marks)))
    server = own_server(
        PYTHONPATH=f"{tmp_path}:{ROOT}",
        AGENT_SERVER_AGENT="hanging_agent:Agent",
        AGENT_SERVER_TRAIN_CONCURRENCY="1",
        AGENT_SERVER_AGENT_TIMEOUT_S="1",
        AGENT_SERVER_COMMAND_TIMEOUT_S="1",
        AGENT_SERVER_GRADING_TIMEOUT_S="1",
        AGENT_SERVER_SANDBOX_START_TIMEOUT_S="1",
        AGENT_SERVER_SESSION_TIMEOUT_S="12",
    )

    def worker() -> int:
        eventually(lambda: any(marks.iterdir()), what="a worker that hangs")
        (mark,) = marks.iterdir()
        mark.unlink()
        return int(mark.name)

    return server, worker


def test_a_worker_that_hangs_before_it_registers_is_stopped_by_a_cancel(hanging, model):
    server, worker_of_next = hanging
    first = server.create(model, [])
    worker = worker_of_next()
    server.client.cancel(first)
    assert server.client.wait(first, timeout_s=10).status == "cancelled"
    eventually(lambda: read_process(worker) is None, what="its worker gone")
    second = server.create(model, [])
    worker = worker_of_next()
    server.client.cancel(second)
    eventually(lambda: read_process(worker) is None, what="the next one, in the slot that became free")


def test_a_worker_that_hangs_before_it_registers_is_stopped_by_the_sessions_limit(hanging, model):
    server, worker_of_next = hanging
    session = server.create(model, [])
    worker = worker_of_next()
    view = server.client.wait(session, timeout_s=40)
    assert view.status == "failed" and "outlasted AGENT_SERVER_SESSION_TIMEOUT_S=12" in view.error["message"]
    eventually(lambda: read_process(worker) is None, what="its worker gone")


def test_a_dead_worker_is_noticed_while_the_fork_server_restarts(own_server, model, tmp_path):
    slow = tmp_path / "slow"
    (tmp_path / "slow_agent.py").write_text(SLOW_AT_RESTART.format(slow=str(slow)))
    server = own_server(PYTHONPATH=f"{tmp_path}:{ROOT}", AGENT_SERVER_AGENT="slow_agent:Agent")
    lost, cancelled = (server.create(model, [Hang(120.0)], key=key) for key in ("lost", "cancelled"))
    eventually(lambda: {"lost", "cancelled"} <= set(model.requests), what="both at work")
    slow.touch()
    workers = {server.worker(lost), server.worker(cancelled)}
    fork_servers = [pid for pid in server.processes() if b"fork_server" in read_or_empty(f"/proc/{pid}/cmdline")]
    (fork_server,) = set(fork_servers) - workers - watchdogs(server, workers)
    os.kill(fork_server, signal.SIGKILL)
    eventually((tmp_path / "slow.begun").exists, within_s=30.0, what="a restart that takes a minute")
    os.kill(server.worker(lost), signal.SIGKILL)
    server.client.cancel(cancelled)
    view = server.client.wait(lost, timeout_s=5)
    assert (view.status, view.error["code"]) == ("failed", "worker_lost")
    assert server.client.wait(cancelled, timeout_s=5).status == "cancelled"
    queued = server.create(model, [FIX])
    assert server.client.get(queued).status == "queued", "no session is admitted before a worker can be started"
    server.client.cancel(queued)


def watchdogs(server, workers: set[int]) -> set[int]:
    """Processes that the workers forked: they have the fork server's command line too."""
    return {pid for pid in server.processes() if (process := read_process(pid)) and process.parent in workers}


def test_a_row_with_a_list_that_is_none_is_refused_at_the_start(own_server, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(ROW | {"PASS_TO_PASS": "[x"}) + "\n")
    with pytest.raises(AssertionError, match="its PASS_TO_PASS is no list of tests"):
        own_server(R2E_DATA_PATH=str(rows))
