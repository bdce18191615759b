"""The local executor and its fork server."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent_server.config import Settings
from agent_server.executors.local import LocalExecutor
from agent_server.sandboxes.processes import descendants
from client.errors import WorkerLost
from tests.agent_server.conftest import eventually

SLOW_AGENT = """
import pathlib, time
pathlib.Path({started!r}).touch()
time.sleep(60)
"""


def living_descendants() -> set[int]:
    return {process.pid for process in descendants(os.getpid()) if process.is_alive}


def test_a_stop_ends_a_fork_server_that_still_preloads(tmp_path, monkeypatch):
    """Preloading takes seconds, and a server may be stopped meanwhile."""
    started = tmp_path / "started"
    (tmp_path / "slow_agent.py").write_text(SLOW_AGENT.format(started=str(started)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = Settings(data_path=tmp_path, sif_dir=tmp_path, work_dir=tmp_path, agent="slow_agent:Agent")
    settings.log_dir.mkdir()
    before = living_descendants()  # servers of other tests in this process
    executor = LocalExecutor(settings)
    with ThreadPoolExecutor(1) as threads:
        start = threads.submit(executor.start)
        eventually(started.exists, within_s=30.0, what="the agent's import begun")
        executor.stop()
        with pytest.raises(WorkerLost):
            start.result(timeout=10.0)
    assert not executor.ready
    assert living_descendants() <= before
