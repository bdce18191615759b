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
from contextlib import suppress
from dataclasses import dataclass

from agent_server.config import Settings
from agent_server.executors.messages import READY, encode_job, receive, send
from agent_server.private_files import open_private
from agent_server.sandboxes.processes import read_process
from agent_server.worker.job import Job
from client.errors import WorkerLost
from client.proxies import environment_of_calls

PRELOAD_TIMEOUT_S = 120.0
END_TIMEOUT_S = 2.0


class LocalExecutor:
    """Executor of workers on this machine."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._fork_server: _ForkServer | None = None
        self._starting: _ForkServer | None = None  # while it preloads
        self._lock = threading.Lock()
        self._watched: dict[int, int] = {}  # pid -> pidfd

    def start(self) -> None:
        """Start the fork server, where it does not run; returns when it can fork. Raises WorkerLost."""
        if self.ready:
            return
        ours, theirs = socket.socketpair()
        with theirs, open(self._settings.log_dir / "fork_server.log", "ab", opener=open_private) as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "agent_server.executors.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=environment_of_calls(os.environ, self._settings.proxies),  # of all agents, whatever their libraries
            )  # fmt: skip
        started = self._starting = _ForkServer(process, ours)
        ours.settimeout(PRELOAD_TIMEOUT_S)
        try:
            send(ours, self._settings.model_dump_json().encode())
            answer = receive(ours)
        except OSError:
            answer = b""
        self._starting = None
        if answer != READY:
            started.end()
            raise WorkerLost(f"the fork server did not become ready; see {self._settings.log_dir}/fork_server.log")
        self._fork_server = started

    @property
    def ready(self) -> bool:
        """The fork server runs and has answered."""
        server = self._fork_server
        return server is not None and server.process.poll() is None

    def launch(self, job: Job) -> int:
        """Fork a worker for the job; returns its pid.

        Raises WorkerLost where the fork server died, perhaps after the fork: this attempt must not be launched again.
        """
        with self._lock:
            self.start()
            server = self._fork_server
            assert server is not None, "start() returned"
            try:
                send(server.connection, encode_job(job))
                if answer := receive(server.connection):
                    return int(answer)
            except OSError:
                pass  # it died, as with an empty answer
            self.stop()
        raise WorkerLost("the fork server ended while it started a worker; see fork_server.log in the log folder")

    def watch(self, pid: int, start_ticks: int | None = None) -> bool:
        """Watch a worker of this or an earlier server. False where that process is gone."""
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
        """Pids of watched workers that have ended since the last call."""
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
        """Signal a worker; no error where it is gone."""
        process = read_process(pid)
        if process and process.start_ticks == start_ticks:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    @staticmethod
    def kill_group(pid: int) -> None:
        """Kill the processes that an ended worker left behind.

        A worker leads a process group of its own, and the group's id is not reused while a member lives.
        """
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def stop(self) -> None:
        """End the fork server, also while another thread starts it: that thread gets WorkerLost. Workers go on."""
        if starting := self._starting:
            starting.process.kill()
        if self._fork_server:
            self._fork_server.end()
        self._fork_server = None


@dataclass(frozen=True, slots=True)
class _ForkServer:
    """A running fork server and this end of its connection."""

    process: subprocess.Popen[bytes]
    connection: socket.socket

    def end(self) -> None:
        """Close the connection, which ends it; kill it where that takes long."""
        self.connection.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=END_TIMEOUT_S)
        self.process.kill()
        self.process.wait()
