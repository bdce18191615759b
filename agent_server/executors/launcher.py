"""Launcher: one thread that keeps a fork server running and requests the workers from it.

Preloading a fork server takes seconds, and a dataset's class may take long for a row; only this thread waits for them.
Invariant: a job is sent once. Where the fork server dies with a job, its worker may exist, so the launch has failed.
"""

import logging
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from agent_server.config import Settings
from agent_server.executors.base import Launch
from agent_server.executors.messages import READY, decode_pid, encode_job, receive, send
from agent_server.private_files import open_private
from agent_server.sandboxes.processes import read_process
from agent_server.worker.job import Job
from client.errors import ServerError, StackError, WorkerLost
from client.proxies import environment_of_calls

log = logging.getLogger(__name__)
PRELOAD_TIMEOUT_S = 120.0
LAUNCH_TIMEOUT_S = 60.0  # of one job: its dataset's packages are imported, and a process is forked
END_TIMEOUT_S = 2.0
CHECK_S = 0.5  # between two looks at an idle fork server
RESTART_PAUSE_S = 1.0  # after one that did not get ready


class Launcher:
    """`on_change` is called, in the launcher's thread, when it gets ready and when a launch has a result."""

    def __init__(self, settings: Settings, on_change: Callable[[], None]):
        self._settings, self._on_change = settings, on_change
        self._jobs: queue.SimpleQueue[tuple[Job, bytes] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Launch] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._fork_server: _ForkServer | None = None
        self._thread = threading.Thread(target=self._run, name="launcher", daemon=True)

    def start(self) -> None:
        """Start the thread, which starts the fork server."""
        self._thread.start()

    @property
    def ready(self) -> bool:
        """The fork server runs and has preloaded."""
        server = self._fork_server
        return server is not None and server.ready

    def submit(self, job: Job) -> None:
        """Launch the job after those before it. Raises TypeError for a job that cannot be encoded."""
        self._jobs.put((job, encode_job(job)))

    def take_results(self) -> list[Launch]:
        """Results since the last call."""
        results = []
        with suppress(queue.Empty):
            while True:
                results.append(self._results.get_nowait())
        return results

    def stop(self) -> None:
        """End the fork server, also while it preloads or starts a worker."""
        self._stopping.set()
        self._jobs.put(None)
        if server := self._fork_server:
            server.end()
        if self._thread.ident is not None:  # it was started
            self._thread.join(timeout=2 * END_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._keep_fork_server()
            try:
                queued = self._jobs.get(timeout=CHECK_S)
            except queue.Empty:
                continue
            if queued:
                self._keep_fork_server()
                self._results.put(self._launch(*queued))
                self._on_change()

    def _keep_fork_server(self) -> None:
        """Return with a fork server that is ready, or when the launcher stops."""
        while not self._stopping.is_set() and not self.ready:
            try:
                if self._fork_server:
                    self._fork_server.end()
                self._fork_server = server = _ForkServer(self._settings)
                if self._stopping.is_set():  # stop() may have looked before
                    server.end()
                server.preload(self._settings)
                self._on_change()
            except (WorkerLost, OSError) as failure:
                if not self._stopping.wait(RESTART_PAUSE_S):
                    log.error("the fork server is started again: %s", failure)

    def _launch(self, job: Job, message: bytes) -> Launch:
        try:
            if self._fork_server is None:
                raise WorkerLost("the server stops")
            pid = self._fork_server.fork_worker(message)
        except StackError as failure:
            return Launch(job.session_id, job.attempt, failure=failure)
        except Exception as unexpected:  # the thread must go on, whatever one session does
            log.exception("session %s", job.session_id)
            text = f"no worker could be started for the session: {type(unexpected).__name__}: {unexpected}"
            return Launch(job.session_id, job.attempt, failure=ServerError(text[:1000]))
        process = read_process(pid)
        return Launch(job.session_id, job.attempt, pid, process.start_ticks if process else 0)


class _ForkServer:
    """A fork server's process and this end of its connection."""

    def __init__(self, settings: Settings):
        """Raises OSError."""
        self._log = f"{settings.log_dir}/fork_server.log"
        self._preloaded = False
        self._connection, theirs = socket.socketpair()
        with theirs, open(self._log, "ab", opener=open_private) as log_file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "agent_server.executors.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=log_file, stderr=log_file,
                env=environment_of_calls(os.environ, settings.proxies),  # of all agents, whatever their libraries
            )  # fmt: skip

    @property
    def ready(self) -> bool:
        """It has preloaded and runs."""
        return self._preloaded and self._process.poll() is None

    def preload(self, settings: Settings) -> None:
        """Return when it can fork. Raises WorkerLost."""
        if self._request(settings.model_dump_json().encode(), PRELOAD_TIMEOUT_S) != READY:
            self.end()
            raise WorkerLost(f"the fork server did not become ready; see {self._log}")
        self._preloaded = True

    def fork_worker(self, message: bytes) -> int:
        """The pid of a worker for the encoded job.

        Raises WorkerLost where the fork server died, perhaps after the fork, and ServerError where it cannot start one.
        """
        if not (reply := self._request(message, LAUNCH_TIMEOUT_S)):
            self.end()
            raise WorkerLost(f"the fork server ended, or took too long, while it started a worker; see {self._log}")
        return decode_pid(reply)

    def end(self) -> None:
        """End it, and whatever waits for it here. A worker that it has forked goes on. Repeatable."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # an idle fork server ends by itself
        with suppress(subprocess.TimeoutExpired):
            if self._preloaded:
                self._process.wait(timeout=END_TIMEOUT_S)
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def _request(self, message: bytes, timeout_s: float) -> bytes:
        """The reply; empty where there is none in time."""
        try:
            self._connection.settimeout(timeout_s)
            send(self._connection, message)
            return receive(self._connection)
        except OSError:
            return b""
