"""The agent server with a fake executor: a session completes after a given time, without a process.

Served by gunicorn with the server's own configuration; AGENT_SERVER_ settings apply. BENCH_HOLD_S is the mean
duration of a session in seconds; durations vary by half of it.
"""

import heapq
import os
import random
import signal
import threading
import time

from flask import Flask

from agent_server.app import create_app
from agent_server.config import Settings
from agent_server.executors.base import Launch
from agent_server.observability import logs
from agent_server.store.store import Store
from agent_server.worker.job import Job
from agent_server.worker.notification import notify
from client.wire import Status

HOLD_S = float(os.environ.get("BENCH_HOLD_S", "1.0"))


class FakeExecutor:
    """An Executor whose workers are entries in a heap; one thread ends them when they are due."""

    def __init__(self, settings: Settings):
        self._settings, self._store = settings, Store(settings.work_dir)
        self._lock, self._ended, self._launched = threading.Lock(), [], []
        self._running: list[tuple[float, int, Job]] = []
        self._random = random.Random(0)
        self._next_pid = 2**22  # above the kernel's pids
        self.ready = False

    def start(self) -> None:
        self.ready = True
        threading.Thread(target=self._work, daemon=True).start()

    def stop(self) -> None:
        self.ready = False

    def launch(self, job: Job) -> None:
        with self._lock:
            self._next_pid += 1
            due = time.monotonic() + HOLD_S * self._random.uniform(0.5, 1.5)
            heapq.heappush(self._running, (due, self._next_pid, job))
            self._launched.append(Launch(job.session_id, job.attempt, self._next_pid))
        notify(self._settings.notify_address)

    def launched(self) -> list[Launch]:
        with self._lock:
            launched, self._launched = self._launched, []
        return launched

    def watch(self, pid: int, start_ticks: int) -> bool:
        return True

    def ended(self) -> list[int]:
        with self._lock:
            ended, self._ended = self._ended, []
        return ended

    def signal(self, pid: int, start_ticks: int, number: signal.Signals) -> None:
        """No process to signal."""

    def kill_group(self, pid: int) -> None:
        """No process to kill."""

    def _work(self) -> None:
        while self.ready:
            with self._lock:
                due = []
                while self._running and self._running[0][0] <= time.monotonic():
                    due.append(heapq.heappop(self._running))
            for _, pid, job in due:
                end = {"agent_exit_status": "Submitted", "submission": "", "reward": 1.0, "n_calls": 1}
                self._store.finish(job.session_id, job.attempt, Status.COMPLETED, **end)
                with self._lock:
                    self._ended.append(pid)
                notify(self._settings.notify_address)
            time.sleep(0.002)


def serve() -> Flask:
    logs.set_up()
    settings = Settings.from_environment(os.environ)
    return create_app(settings, FakeExecutor(settings))
