"""Dispatcher: reconciles the store's sessions with the executor's workers.

Invariant: it keeps no state that the store does not hold, but which workers it watches and asked to stop.
"""

import shutil
import signal
import sqlite3
import time
from collections.abc import Callable

from agent_server.config import Settings
from agent_server.executors.base import Executor
from agent_server.sandboxes.cgroups import cgroup
from agent_server.scheduling.loop import IDLE_S
from agent_server.scheduling.scheduler import admissions, free_slots
from agent_server.store.store import Store
from agent_server.tasks.order import MODES
from agent_server.tasks.task import Task
from agent_server.worker.job import MOST_ATTEMPTS, Job
from client.errors import ServerError, StackError, WorkerLost
from client.wire import Mode

STOP_POLL_S = 0.1  # between two passes while a worker was asked to stop
STOP_GRACE_S = 1.0  # between SIGTERM and SIGKILL for the worker of a cancelled session


class Dispatcher:
    """`get_task` reads a row by mode and id, and may raise NotFound. While `draining`, no session is admitted."""

    def __init__(self, settings: Settings, store: Store, get_task: Callable[[Mode, str], Task], executor: Executor):
        self._settings, self._store = settings, store
        self._get_task, self._executor = get_task, executor
        self.draining = False
        self._watched: dict[int, tuple[str, int]] = {}  # worker pid -> session, attempt
        self._stop_asked_at: dict[tuple[str, int], float] = {}  # session, attempt -> Unix seconds

    def adopt(self) -> None:
        """Watch the workers of an earlier server that still run. A session without its worker is requeued or fails."""
        for row in self._store.active():
            pid, attempt = row["worker_pid"], row["attempt"]
            if pid is not None and self._executor.watch(pid, row["worker_start_ticks"]):
                self._watched[pid] = (row["id"], attempt)
            else:
                lost = WorkerLost("the server was restarted, and the session's worker was gone")
                self._requeue_or_end(row["id"], attempt, lost)

    def reconcile(self) -> float:
        """Reap ended workers, stop cancelled and overdue ones, admit queued sessions.

        Returns the longest pause in seconds until it must run again. Raises WorkerLost, StorageError.
        """
        self._executor.start()
        for pid in self._executor.ended():
            self._reap(pid)
        active = self._stop_cancelled_and_overdue()
        if not self.draining:
            self._admit(active)
        return STOP_POLL_S if self._stop_asked_at else IDLE_S

    def _admit(self, active: list[sqlite3.Row]) -> None:
        in_force = self._store.limits()
        limits: dict[str, int] = {mode: in_force[mode] for mode in MODES}
        running = {mode: sum(row["mode"] == mode for row in active) for mode in limits}
        queued = {mode: self._store.queued(mode, free) for mode, free in free_slots(running, limits).items()}
        for session_id in admissions(queued, running, limits):
            self._launch(session_id)

    def _launch(self, session_id: str) -> None:
        row = self._store.admit(session_id)
        if row is None:
            return
        attempt = row["attempt"]
        try:
            task = self._get_task(row["mode"], row["task_id"])
            pid = self._executor.launch(Job(session_id, attempt, row["base_url"], row["api_key"], task))
        except StackError as failure:
            if failure.transient:
                self._requeue_or_end(session_id, attempt, failure)
            else:
                self._store.end_without_result(session_id, failure, attempt=attempt)
            return
        self._watched[pid] = (session_id, attempt)
        if not self._executor.watch(pid):
            self._reap(pid)

    def _reap(self, pid: int) -> None:
        """Clean up after an ended worker. One that was killed left no record: requeue its session or end it here."""
        session_id, attempt = self._watched.pop(pid)
        self._stop_asked_at.pop((session_id, attempt), None)
        log_file = f"{self._settings.log_dir}/{session_id}.log"
        lost = WorkerLost(f"the worker (pid {pid}) ended without a result; see {log_file}")
        if self._requeue_or_end(session_id, attempt, lost):
            attempt_id = f"{session_id}.{attempt}"
            self._executor.kill_group(pid)
            cgroup.remove_cgroups(self._settings.scratch_dir, attempt_id.__eq__)
            shutil.rmtree(self._settings.scratch_dir / attempt_id, ignore_errors=True)

    def _requeue_or_end(self, session_id: str, attempt: int, failure: StackError) -> bool:
        """False where the session has ended already."""
        requeued = self._store.requeue(session_id, failure, attempt=attempt, most_attempts=MOST_ATTEMPTS)
        return requeued or self._store.end_without_result(session_id, failure, attempt=attempt)

    def _stop_cancelled_and_overdue(self) -> list[sqlite3.Row]:
        """SIGTERM workers of cancelled and overdue sessions, SIGKILL after the grace. Returns the active sessions."""
        now = time.time()
        active = self._store.active()
        for row in active:
            overdue = self._is_overdue(row, now)
            if not (row["cancel_requested"] or overdue) or row["worker_pid"] is None:
                continue
            if overdue and not row["cancel_requested"]:
                limit = f"AGENT_SERVER_SESSION_TIMEOUT_S={self._settings.session_timeout_s:g}"
                failure = ServerError(f"the session outlasted {limit}")
                self._store.end_without_result(row["id"], failure, attempt=row["attempt"])
            worker, key = (row["worker_pid"], row["worker_start_ticks"]), (row["id"], row["attempt"])
            if key not in self._stop_asked_at:
                self._stop_asked_at[key] = now
                self._executor.signal(*worker, signal.SIGTERM)
            elif now - self._stop_asked_at[key] > STOP_GRACE_S:
                self._executor.signal(*worker, signal.SIGKILL)
        return active

    def _is_overdue(self, row: sqlite3.Row, now: float) -> bool:
        """Waits for semaphores do not count."""
        waiting_s = now - row["waiting_since"] if row["waiting_since"] else 0.0
        return now - row["started_at"] - row["waited_s"] - waiting_s > self._settings.session_timeout_s
