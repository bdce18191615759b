"""Dispatcher: reconciles the store's sessions with the executor's workers.

Invariant: sessions' state is in the store alone. Its own memory holds only what it has launched and not reaped, what
could not be started, and when it asked a worker to stop; a restarted server watches again and asks again. Whatever goes
wrong with one session ends that session, and no other one waits for it.
"""

import logging
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable

from agent_server.config import Settings
from agent_server.executors.base import Executor, Launch
from agent_server.sandboxes.cgroups import cgroup
from agent_server.scheduling.loop import IDLE_S
from agent_server.scheduling.scheduler import free_slots, select_admissions
from agent_server.store.store import Store
from agent_server.tasks.order import MODES
from agent_server.tasks.task import Task
from agent_server.worker.job import MAX_ATTEMPTS, Job
from client.errors import ServerError, StackError, WorkerLost
from client.wire import Mode

log = logging.getLogger(__name__)
STOP_POLL_S = 0.1  # between two passes while a worker was asked to stop
STOP_GRACE_S = 1.0  # between SIGTERM and SIGKILL for the worker of a cancelled or overdue session
REGISTER_S = 1.0  # a worker that has not recorded its pid by then is recorded by the server, for the next one to stop
Attempt = tuple[str, int]  # session, attempt


class Dispatcher:
    """`get_task` reads a task by mode and id, and may raise. While `draining`, no session is admitted."""

    def __init__(self, settings: Settings, store: Store, get_task: Callable[[Mode, str], Task], executor: Executor):
        self._settings, self._store = settings, store
        self._get_task, self._executor = get_task, executor
        self.draining = False
        self._launching: set[Attempt] = set()  # the executor has no result yet
        self._unstarted: list[tuple[Attempt, StackError]] = []  # to be repeated or ended
        self._unwanted: set[Attempt] = set()  # their sessions ended while their workers were started
        self._watched: dict[int, Attempt] = {}  # by the worker's pid
        self._workers: dict[Attempt, tuple[int, int]] = {}  # pid and start ticks, of those launched here
        self._ended: list[int] = []  # pids of ended workers, to be reaped
        self._stop_asked_at: dict[Attempt, float] = {}  # Unix seconds

    def adopt(self) -> None:
        """Watch the workers of an earlier server that still run. A session without its worker is requeued or fails."""
        for row in self._store.list_active():
            pid, attempt = row["worker_pid"], row["attempt"]  # no pid: the worker had not registered itself yet
            if pid is not None and self._executor.watch(pid, row["worker_start_ticks"]):
                self._watched[pid] = (row["id"], attempt)
            else:
                lost = WorkerLost("the server was restarted, and the session's worker was gone")
                self._requeue_or_end((row["id"], attempt), lost)

    def reconcile(self) -> float:
        """Reap ended workers, stop cancelled and overdue ones, admit queued sessions.

        Returns the longest pause in seconds until it must run again. Raises StorageError.
        """
        self._take_launched()
        self._end_unstarted()
        self._ended += self._executor.ended()
        self._reap_ended()
        active = self._stop_cancelled_and_overdue()
        if self._executor.ready and not self.draining:
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
        """Admit the session and start its worker."""
        row = self._store.admit(session_id)
        if row is None:
            return
        attempt = (session_id, row["attempt"])
        try:
            task = self._get_task(row["mode"], row["task_id"])
            self._executor.launch(Job(*attempt, row["base_url"], row["api_key"], row["mode"], task))
            self._launching.add(attempt)
        except StackError as failure:
            self._unstarted.append((attempt, failure))
        except Exception as unexpected:  # the dataset's class may be the user's
            log.exception("session %s cannot be started", session_id)
            text = f"the session cannot be started: {type(unexpected).__name__}: {unexpected}"
            self._unstarted.append((attempt, ServerError(text[:1000])))
        self._end_unstarted()

    def _take_launched(self) -> None:
        """Watch the workers that were started."""
        for launch in self._executor.launched():
            attempt = (launch.session_id, launch.attempt)
            if attempt not in self._launching:
                self._unwanted.add(attempt)
                self._executor.signal(launch.pid, launch.start_ticks, signal.SIGKILL)
            self._launching.discard(attempt)
            if launch.failure:
                self._unstarted.append((attempt, launch.failure))
            else:
                self._watch(attempt, launch)

    def _watch(self, attempt: Attempt, launch: Launch) -> None:
        worker = (launch.pid, launch.start_ticks)
        try:
            runs = self._executor.watch(*worker)
        except OSError as refused:  # out of descriptors, for example
            self._executor.signal(*worker, signal.SIGKILL)
            self._unstarted.append((attempt, ServerError(f"the session's worker cannot be watched: {refused}")))
            return
        self._watched[launch.pid], self._workers[attempt] = attempt, worker
        if not runs:
            self._ended.append(launch.pid)

    def _end_unstarted(self) -> None:
        while self._unstarted:
            self._requeue_or_end(*self._unstarted[-1])  # where this raises, the next pass tries it again
            self._unstarted.pop()

    def _reap_ended(self) -> None:
        while self._ended:
            self._reap(self._ended[-1])  # where this raises, the next pass tries it again
            self._ended.pop()

    def _reap(self, pid: int) -> None:
        """Forget an ended worker. Where it left its session active, clean up and requeue or end the session."""
        attempt = session_id, number = self._watched[pid]
        is_active = self._store.is_active(*attempt)
        if is_active or attempt in self._unwanted:
            try:
                self._clean_up(pid, f"{session_id}.{number}")
            except Exception:
                log.exception("what the worker %d left of session %s cannot be removed", pid, session_id)
        if is_active:
            log_file = f"{self._settings.log_dir}/{session_id}.log"
            lost = WorkerLost(f"the worker (pid {pid}) ended without a result; see {log_file}")
            self._requeue_or_end(attempt, lost)  # last: it ends the session, so no later pass comes back
        del self._watched[pid]
        self._workers.pop(attempt, None)
        self._unwanted.discard(attempt)
        self._stop_asked_at.pop(attempt, None)

    def _clean_up(self, pid: int, attempt_id: str) -> None:
        self._executor.kill_group(pid)
        cgroup.remove_cgroups(self._settings.scratch_dir, attempt_id.__eq__)
        shutil.rmtree(self._settings.scratch_dir / attempt_id, ignore_errors=True)

    def _requeue_or_end(self, attempt: Attempt, failure: StackError) -> None:
        """Repeat a failed attempt where that is safe and may help; otherwise its session ends."""
        session_id, number = attempt
        if not (
            failure.transient and self._store.requeue(session_id, failure, attempt=number, max_attempts=MAX_ATTEMPTS)
        ):
            self._store.end_without_result(session_id, failure, attempt=number)

    def _stop_cancelled_and_overdue(self) -> list[sqlite3.Row]:
        """SIGTERM workers of cancelled and overdue sessions, SIGKILL after the grace. Returns the active sessions.

        Such a session stays active, and keeps its slot, until its worker records the end or is reaped. One that has no
        worker yet ends at once.
        """
        now = time.time()
        active = []
        for row in self._store.list_active():
            attempt = (row["id"], row["attempt"])
            stopping = row["cancel_requested"] or row["stop_error"]
            overdue = self._is_overdue(row, now)
            worker = self._find_worker(row, hurry=stopping or overdue or now - row["started_at"] > REGISTER_S)
            if overdue and not stopping:
                limit = f"AGENT_SERVER_SESSION_TIMEOUT_S={self._settings.session_timeout_s:g}"
                self._store.fail_when_stopped(*attempt, ServerError(f"the session outlasted {limit}"))
            if worker and (stopping or overdue):
                self._stop(attempt, worker, now)
            elif stopping or overdue:
                self._launching.discard(attempt)
                before = ServerError("the session was stopped before its worker was started")
                self._store.end_without_result(row["id"], before, attempt=row["attempt"])
                continue
            active.append(row)
        return active

    def _find_worker(self, row: sqlite3.Row, hurry: bool) -> tuple[int, int] | None:
        """Pid and start ticks of the session's worker, None before there is one.

        A worker records itself when it begins. In a `hurry` the server does it, for a worker that hangs before that.
        """
        attempt = (row["id"], row["attempt"])
        if row["worker_pid"] is None and hurry and attempt in self._workers:
            self._store.record_worker(*attempt, *self._workers[attempt])
            return self._workers[attempt]
        return None if row["worker_pid"] is None else (row["worker_pid"], row["worker_start_ticks"])

    def _stop(self, attempt: Attempt, worker: tuple[int, int], now: float) -> None:
        if attempt not in self._stop_asked_at:
            self._stop_asked_at[attempt] = now
            self._executor.signal(*worker, signal.SIGTERM)
        elif now - self._stop_asked_at[attempt] > STOP_GRACE_S:
            self._executor.signal(*worker, signal.SIGKILL)

    def _is_overdue(self, row: sqlite3.Row, now: float) -> bool:
        """Whether the attempt has run longer than the session's timeout, its waits for semaphores not counted."""
        waiting_s = now - row["waiting_since"] if row["waiting_since"] else 0.0
        return now - row["started_at"] - row["waited_s"] - waiting_s > self._settings.session_timeout_s
