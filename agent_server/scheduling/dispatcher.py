"""Dispatcher: reconciles the store's sessions with the executor's workers.

Invariant: sessions' state is in the store alone. Its own memory holds only the workers that it watches, the ended ones
that it has not reaped, and when it asked one to stop; a restarted server watches again and asks again.
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
from agent_server.scheduling.scheduler import free_slots, select_admissions
from agent_server.store.store import Store
from agent_server.tasks.order import MODES
from agent_server.tasks.task import Task
from agent_server.worker.job import MAX_ATTEMPTS, Job
from client.errors import ServerError, StackError, WorkerLost
from client.wire import Mode

STOP_POLL_S = 0.1  # between two passes while a worker was asked to stop
STOP_GRACE_S = 1.0  # between SIGTERM and SIGKILL for the worker of a cancelled or overdue session


class Dispatcher:
    """`get_task` reads a task by mode and id, and may raise NotFound. While `draining`, no session is admitted."""

    def __init__(self, settings: Settings, store: Store, get_task: Callable[[Mode, str], Task], executor: Executor):
        self._settings, self._store = settings, store
        self._get_task, self._executor = get_task, executor
        self.draining = False
        self._watched: dict[int, tuple[str, int]] = {}  # worker pid -> session, attempt
        self._ended: list[int] = []  # pids of ended workers, to be reaped
        self._stop_asked_at: dict[tuple[str, int], float] = {}  # session, attempt -> Unix seconds

    def adopt(self) -> None:
        """Watch the workers of an earlier server that still run. A session without its worker is requeued or fails."""
        for row in self._store.list_active():
            pid, attempt = row["worker_pid"], row["attempt"]  # no pid: the worker had not registered itself yet
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
        self._ended += self._executor.ended()
        self._reap_ended()
        active = self._stop_cancelled_and_overdue()
        if not self.draining:
            self._admit(active)
        return STOP_POLL_S if self._stop_asked_at else IDLE_S

    def _admit(self, active: list[sqlite3.Row]) -> None:
        in_force = self._store.limits()
        limits: dict[str, int] = {mode: in_force[mode] for mode in MODES}
        running = {mode: sum(row["mode"] == mode for row in active) for mode in limits}
        free = free_slots(running, limits)
        queued = {mode: self._store.list_queued(mode, slots) for mode, slots in free.items()}
        for session_id in select_admissions(queued, free):
            self._launch(session_id)

    def _launch(self, session_id: str) -> None:
        row = self._store.admit(session_id)
        if row is None:
            return
        attempt = row["attempt"]
        try:
            task = self._get_task(row["mode"], row["task_id"])
            pid = self._executor.launch(Job(session_id, attempt, row["base_url"], row["api_key"], row["mode"], task))
        except StackError as failure:
            if failure.transient:
                self._requeue_or_end(session_id, attempt, failure)
            else:
                self._store.end_without_result(session_id, failure, attempt=attempt)
            return
        self._watched[pid] = (session_id, attempt)
        if not self._executor.watch(pid):
            self._ended.append(pid)
            self._reap_ended()

    def _reap_ended(self) -> None:
        while self._ended:
            self._reap(self._ended[-1])  # where this raises, the next pass tries it again
            self._ended.pop()

    def _reap(self, pid: int) -> None:
        """Forget an ended worker. Where it left its session active, clean up and requeue or end the session."""
        session_id, attempt = self._watched[pid]
        if self._store.is_active(session_id, attempt):
            attempt_id = f"{session_id}.{attempt}"
            self._executor.kill_group(pid)
            cgroup.remove_cgroups(self._settings.scratch_dir, attempt_id.__eq__)
            shutil.rmtree(self._settings.scratch_dir / attempt_id, ignore_errors=True)
            log_file = f"{self._settings.log_dir}/{session_id}.log"
            lost = WorkerLost(f"the worker (pid {pid}) ended without a result; see {log_file}")
            self._requeue_or_end(session_id, attempt, lost)  # last: it ends the session, so no later pass comes back
        del self._watched[pid]
        self._stop_asked_at.pop((session_id, attempt), None)

    def _requeue_or_end(self, session_id: str, attempt: int, failure: StackError) -> None:
        """Repeat a failed attempt where that is safe; otherwise its session ends."""
        if not self._store.requeue(session_id, failure, attempt=attempt, max_attempts=MAX_ATTEMPTS):
            self._store.end_without_result(session_id, failure, attempt=attempt)

    def _stop_cancelled_and_overdue(self) -> list[sqlite3.Row]:
        """SIGTERM workers of cancelled and overdue sessions, SIGKILL after the grace. Returns the active sessions.

        Such a session stays active, and keeps its slot, until its worker records the end or is reaped.
        """
        now = time.time()
        active = self._store.list_active()
        for row in active:
            stopping = row["cancel_requested"] or row["stop_error"]
            # Without `worker_pid` the worker has not registered itself yet; it learns of a cancel when it does.
            if row["worker_pid"] is None or not (stopping or self._is_overdue(row, now)):
                continue
            worker, key = (row["worker_pid"], row["worker_start_ticks"]), (row["id"], row["attempt"])
            if not stopping:
                limit = f"AGENT_SERVER_SESSION_TIMEOUT_S={self._settings.session_timeout_s:g}"
                self._store.fail_when_stopped(*key, ServerError(f"the session outlasted {limit}"))
            if key not in self._stop_asked_at:
                self._stop_asked_at[key] = now
                self._executor.signal(*worker, signal.SIGTERM)
            elif now - self._stop_asked_at[key] > STOP_GRACE_S:
                self._executor.signal(*worker, signal.SIGKILL)
        return active

    def _is_overdue(self, row: sqlite3.Row, now: float) -> bool:
        """Whether the attempt has run longer than the session's timeout, its waits for semaphores not counted."""
        waiting_s = now - row["waiting_since"] if row["waiting_since"] else 0.0
        return now - row["started_at"] - row["waited_s"] - waiting_s > self._settings.session_timeout_s
