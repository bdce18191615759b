"""The local executor and its fork server."""

import os
import signal
import uuid
from collections.abc import Iterator

import pytest

from agent_server.config import Settings
from agent_server.executors import launcher
from agent_server.executors.base import Launch
from agent_server.executors.local import LocalExecutor
from agent_server.sandboxes.processes import descendants, kill, read_process
from agent_server.tasks.task import Task
from agent_server.worker.job import Job
from client.errors import ServerError, WorkerLost
from tests.agent_server.conftest import eventually, read_or_empty

SLOW_AGENT = """
import pathlib, time
pathlib.Path({started!r}).touch()
time.sleep(60)
"""
# Its workers only sleep: in the fork server's child, before the worker's own code.
SLEEPING_WORKERS = """
import os, pathlib, time
from agent_server.grading.datasets.base import Dataset
os.register_at_fork(after_in_child=lambda: time.sleep(600))

class Agent:
    def run(self, problem_statement, sandbox, endpoint, *, agent_timeout_s, command_timeout_s, trajectory, seconds):
        raise NotImplementedError

class Raises(Dataset):
    def preload(self, task):
        raise LookupError("nothing to import")

class Hangs(Dataset):
    def preload(self, task):
        time.sleep(600)

class Ends(Dataset):
    def preload(self, task):
        os._exit(1)
"""


def living_descendants() -> set[int]:
    return {process.pid for process in descendants(os.getpid()) if process.is_alive}


def own_fork_server() -> int:
    """Pid of the fork server that this process has started; its workers and other servers' are further below."""
    (pid,) = [
        process.pid
        for process in descendants(os.getpid())
        if process.parent == os.getpid() and b"fork_server" in read_or_empty(f"/proc/{process.pid}/cmdline")
    ]
    return pid


@pytest.fixture
def settings(tmp_path, monkeypatch) -> Settings:
    (tmp_path / "own_agent.py").write_text(SLEEPING_WORKERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = Settings(data_path=tmp_path, sif_dir=tmp_path, work_dir=tmp_path, agent="own_agent:Agent")
    settings.log_dir.mkdir()
    return settings


@pytest.fixture
def executor(settings) -> Iterator[LocalExecutor]:
    before = living_descendants()  # servers of other tests in this process
    executor = LocalExecutor(settings)
    executor.start()
    eventually(lambda: executor.ready, within_s=60.0, what="the fork server is ready")
    yield executor
    executor.stop()
    assert not executor.ready and living_descendants() <= before


def job(dataset: str) -> Job:
    return Job(uuid.uuid4().hex, 1, "http://x", "k", "train", Task("t", dataset, "image", "problem"))


def result(executor: LocalExecutor, within_s: float = 30.0) -> Launch:
    results: list[Launch] = []

    def has_result() -> bool:
        results.extend(executor.launched())
        return bool(results)

    eventually(has_result, within_s=within_s, what="a launch's result")
    (launch,) = results
    return launch


def end_worker(executor: LocalExecutor, launch: Launch) -> None:
    assert launch.failure is None and executor.watch(launch.pid, launch.start_ticks)
    executor.signal(launch.pid, launch.start_ticks, signal.SIGKILL)
    eventually(lambda: executor.ended() == [launch.pid], what="its end noticed")


def test_a_stop_ends_a_fork_server_that_still_preloads(settings, tmp_path):
    """Preloading takes seconds, and a server may be stopped meanwhile."""
    started = tmp_path / "started"
    (tmp_path / "own_agent.py").write_text(SLOW_AGENT.format(started=str(started)))
    before = living_descendants()
    executor = LocalExecutor(settings)
    executor.start()
    eventually(started.exists, within_s=30.0, what="the agent's import begun")
    executor.stop()
    assert not executor.ready
    eventually(lambda: living_descendants() <= before, what="the fork server gone")


def test_a_worker_is_started_watched_and_signalled(executor):
    executor.launch(job("r2e"))
    launch = result(executor)
    process = read_process(launch.pid)
    assert process and process.start_ticks == launch.start_ticks
    assert not executor.watch(launch.pid, launch.start_ticks + 1), "a later process with the same pid"
    end_worker(executor, launch)


@pytest.mark.parametrize("dataset", ["own_agent:Raises", "own_agent:Missing", "no_module:Dataset"])
def test_a_class_that_raises_costs_its_own_session_alone(executor, dataset):
    fork_server = own_fork_server()
    executor.launch(job(dataset))
    failed = result(executor).failure
    assert isinstance(failed, ServerError) and not failed.transient and "no worker could be started" in str(failed)
    executor.launch(job("r2e"))
    end_worker(executor, result(executor))
    assert read_process(fork_server), "the same fork server goes on"


@pytest.mark.parametrize("dataset", ["own_agent:Hangs", "own_agent:Ends"])
def test_a_fork_server_that_is_lost_with_a_job_is_replaced_for_the_next(executor, monkeypatch, dataset):
    monkeypatch.setattr(launcher, "LAUNCH_TIMEOUT_S", 1.0)
    executor.launch(job(dataset))
    executor.launch(job("r2e"))
    lost = result(executor).failure
    assert isinstance(lost, WorkerLost) and lost.transient, "another attempt is safe"
    monkeypatch.undo()
    end_worker(executor, result(executor, within_s=60.0))


def test_no_call_waits_while_the_fork_server_is_restarted(executor, settings, tmp_path):
    executor.launch(job("r2e"))
    running = result(executor)
    assert executor.watch(running.pid, running.start_ticks)
    started = tmp_path / "started"
    (tmp_path / "own_agent.py").write_text(SLOW_AGENT.format(started=str(started)))
    fork_server = own_fork_server()
    kill(fork_server)
    eventually(started.exists, within_s=30.0, what="another fork server, which preloads for a minute")
    executor.launch(job("r2e"))
    assert executor.launched() == [] and not executor.ready
    executor.signal(running.pid, running.start_ticks, signal.SIGKILL)
    eventually(lambda: executor.ended() == [running.pid], within_s=5.0, what="its end noticed")


def test_a_task_that_is_not_json_is_refused_at_once(executor):
    with pytest.raises(TypeError):
        executor.launch(
            Job("s", 1, "http://x", "k", "train", Task("t", "r2e", "image", "problem", row={"a": object()}))
        )
