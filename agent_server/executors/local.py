"""Workers as local processes, forked from a preloaded fork server, watched and ended by pid.

Invariant: a pid is only ever signalled together with the start time that identifies its process.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time

from agent_server.config import Settings
from agent_server.executors import fork_server
from agent_server.sandboxes.processes import read_process
from agent_server.worker.job import Job
from client.errors import WorkerLost

PRELOAD_TIMEOUT_S = 120.0


class LocalExecutor:
    """Starts workers and says which of those watched have ended."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._server: subprocess.Popen | None = None
        self._connection: socket.socket | None = None
        self._lock = threading.Lock()
        self._watched: dict[int, int] = {}  # pid -> pidfd

    def start(self) -> None:
        """Start the fork server unless it runs, and return when it can fork. Raises WorkerLost."""
        if self.ready:
            return
        ours, theirs = socket.socketpair()
        with theirs, (self._settings.log_dir / "fork_server.log").open("ab") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "agent_server.executors.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        ours.settimeout(PRELOAD_TIMEOUT_S)
        try:
            fork_server.send(ours, self._settings.model_dump_json().encode())
            ready = fork_server.receive(ours)
        except OSError as lost:
            ready = str(lost).encode()
        if ready != fork_server.READY:
            ours.close()
            self.stop()
            raise WorkerLost(f"the fork server did not become ready; see {self._settings.log_dir}/fork_server.log")
        self._connection = ours

    @property
    def ready(self) -> bool:
        """The fork server is there and has said so."""
        return self._connection is not None and self._server.poll() is None

    def launch(self, job: Job) -> int:
        """Fork a worker for the job; returns its pid. Raises WorkerLost where the fork server died of it, perhaps after the
        fork: the same attempt must not be launched again."""
        with self._lock:
            self.start()
            try:
                fork_server.send(self._connection, fork_server.encode(job))
                if answer := fork_server.receive(self._connection):
                    return int(answer)
            except OSError:
                pass
            self.stop()
        raise WorkerLost("the fork server ended while it started a worker; see fork_server.log in the log folder")

    def watch(self, pid: int, start_ticks: int | None = None) -> bool:
        """Watch a worker, ours or one of an earlier server. False where that process is gone."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        process = read_process(pid)
        if process is None or (start_ticks is not None and process.start_ticks != start_ticks):
            os.close(descriptor)
            return False
        self._watched[pid] = descriptor
        return True

    def ended(self) -> list[int]:
        """Watched workers that have ended since the last call."""
        poll = select.poll()
        pids = {descriptor: pid for pid, descriptor in self._watched.items()}
        for descriptor in pids:
            poll.register(descriptor, select.POLLIN)
        gone = [pids[descriptor] for descriptor, _ in poll.poll(0)]
        for pid in gone:
            os.close(self._watched.pop(pid))
        return gone

    @staticmethod
    def signal(pid: int, start_ticks: int, number: signal.Signals) -> None:
        """Signal a worker; one that is gone is fine."""
        process = read_process(pid)
        if process and process.start_ticks == start_ticks:
            _ignore_gone(os.kill, pid, number)

    @staticmethod
    def kill_group(pid: int) -> None:
        """End what an ended worker left behind. Workers lead a process group of their own, and its number is not given
        to another process while one member lives."""
        _ignore_gone(os.killpg, pid, signal.SIGKILL)

    def stop(self) -> None:
        """End the fork server. Workers go on."""
        if self._connection:
            self._connection.close()
        if self._server:
            deadline = time.monotonic() + 2.0
            while self._server.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            self._server.kill()
            self._server.wait()
        self._server = self._connection = None


def _ignore_gone(send, pid: int, number: signal.Signals) -> None:
    try:
        send(pid, number)
    except ProcessLookupError:
        pass
