"""The server's one moving part: looks at the store, asks the scheduler, tells the executor.

A thread that reconciles again and again: on every notification, and at least every half second, so that a lost
notification costs a moment. It also tells what happened (events) and sweeps what nobody needs any more.
Invariant: it keeps nothing that the store does not hold, except whom it asked to stop and when.
"""

import logging
import os
import shutil
import signal
import socket
import sqlite3
import threading
import time

from agent_server.config import Settings
from agent_server.executors.base import Executor
from agent_server.observability.events import ENDS, MOST_AT_ONCE, EventLog
from agent_server.sandboxes.cgroups import cgroup
from agent_server.sandboxes.loop_devices import LoopDeviceSweeper
from agent_server.sandboxes.orphans import reclaim_orphans
from agent_server.scheduling.long_polls import LongPolls
from agent_server.scheduling.scheduler import admissions, free_slots
from agent_server.store.store import Store
from agent_server.tasks.catalog import Catalog
from agent_server.tasks.order import MODES
from agent_server.worker.job import MOST_ATTEMPTS, Job
from agent_server.worker.notification import notify
from client.errors import ConfigError, ServerError, StackError, WorkerLost
from client.wire import SessionView

log = logging.getLogger(__name__)
LOOK_AGAIN_S = 0.5
COALESCE_S = 0.005  # a burst of notifications is one reason to look, not many
SOON_S = 0.1  # while somebody was asked to stop
SWEEP_S = 30.0  # between two looks for what has expired
WAKE_ANYWAY_S = 60.0  # a waiter that nobody woke looks for itself
STOP_GRACE_S = 1.0  # between the polite signal to a cancelled session's worker and the one that cannot be ignored


class Dispatcher:
    def __init__(self, settings: Settings, store: Store, catalog: Catalog, executor: Executor, events: EventLog):
        self._settings = settings
        self._store = store
        self._catalog = catalog
        self._executor = executor
        self._events = events
        self._waiters = LongPolls()
        self._loops = LoopDeviceSweeper(settings.sif_dir)
        self._draining = False
        self._sweep_at = 0.0
        self._watched: dict[int, tuple[str, int]] = {}  # worker pid -> session, attempt
        self._stop_asked_at: dict[tuple[str, int], float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="dispatcher", daemon=True)
        self._inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def start(self) -> None:
        """Adopt what an earlier server left running, then begin to dispatch; returns at once. Raises ConfigError, StorageError."""
        for folder in (
            self._settings.scratch_dir,
            self._settings.trajectory_dir,
            self._settings.log_dir,
            self._settings.semaphore_dir,
        ):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            self._inbox.bind(self._settings.notify_address)
        except OSError as taken:
            raise ConfigError(
                f"another agent server works in AGENT_SERVER_WORK_DIR={self._settings.work_dir}; stop it or choose another folder"
            ) from taken
        self._store.set_limits(self._settings.limits)
        self._adopt()
        if reclaimed := reclaim_orphans(
            self._settings, active={f"{row['id']}.{row['attempt']}" for row in self._store.active()}
        ):
            log.warning("ended what killed workers had left of %s", ", ".join(reclaimed))
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def ready(self) -> bool:
        """Sessions are accepted and run."""
        return self.alive and self._executor.ready and not self._draining

    @property
    def draining(self) -> bool:
        return self._draining

    def limits(self) -> dict[str, int]:
        """Those in force, by name."""
        return self._settings.limits | self._store.limits()

    def drain(self) -> None:
        """Admit nothing more, and return when nothing runs or the time for it is up. What still runs then is left to itself
        and adopted by the next start; who waits for it is told to ask again."""
        self._draining = True
        log.info("draining: no new sessions, up to %g s for those that run", self._settings.drain_timeout_s)
        deadline = time.monotonic() + self._settings.drain_timeout_s
        while self._store.active() and time.monotonic() < deadline and self.alive:
            time.sleep(0.05)
        if left := [row["id"] for row in self._store.active()]:
            log.info("left to the next start: %s", ", ".join(left))

    def cancel_all(self) -> None:
        """Stop the sessions that run, whoever may want them. Queued ones stay queued for the next start."""
        self._draining = True
        for row in self._store.active():
            self._store.request_cancel(row["id"])
        self.wake()
        deadline = time.monotonic() + 2 * STOP_GRACE_S + 1.0
        while self._store.active() and time.monotonic() < deadline:
            time.sleep(0.02)

    def release_waiters(self) -> None:
        """Answer all who wait with what is known now, and let nobody wait any more."""
        self._waiters.close()

    def stop(self) -> None:
        """End the dispatcher and the fork server; workers go on."""
        if not self.alive:
            return
        self._stopping.set()
        self.release_waiters()
        self.wake()
        self._thread.join(timeout=5.0)
        self._executor.stop()
        self._inbox.close()

    def wake(self) -> None:
        """Something changed: reconcile soon, and let waiters look again."""
        notify(self._settings.notify_address)

    def wait_terminal(self, session_id: str, timeout_s: float) -> SessionView:
        """The session as soon as it is terminal, or as it is when the time is up. Raises NotFound."""
        deadline = time.monotonic() + timeout_s
        with self._waiters.waiting(session_id) as ended:
            while True:
                view = self._store.view(session_id)
                left_s = deadline - time.monotonic()
                if view.status.terminal or left_s <= 0 or self._waiters.closed:
                    return view
                ended.wait(min(left_s, WAKE_ANYWAY_S))

    # --- the loop ---------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                self._executor.start()
                self._reconcile()
                self._tell()
                self._sweep()
            except StackError as failure:
                log.error("dispatcher: %s", failure)
                time.sleep(LOOK_AGAIN_S)
            except Exception:
                log.exception("dispatcher: this pass failed and will be tried again")
                time.sleep(LOOK_AGAIN_S)
            self._sleep()

    def _sleep(self) -> None:
        """Until a notification or the next look; swallows further notifications that are there already."""
        self._inbox.settimeout(SOON_S if self._stop_asked_at else LOOK_AGAIN_S)
        try:
            self._inbox.recv(16)
            time.sleep(COALESCE_S)
            self._inbox.setblocking(False)
            while self._inbox.recv(16):
                pass
        except (TimeoutError, BlockingIOError):
            pass

    def _reconcile(self) -> None:
        self._bury_ended_workers()
        active = self._stop_unwanted()
        if self._draining:
            return
        limits = {name: value for name, value in self.limits().items() if name in MODES}
        running = {mode: sum(row["mode"] == mode for row in active) for mode in limits}
        queued = {mode: self._store.queued(mode, free) for mode, free in free_slots(running, limits).items()}
        for session_id in admissions(queued, running, limits):
            self._start(session_id)

    def _tell(self) -> None:
        """One helping a pass: in a burst there is always more. Who waits hears first, also where the log cannot be written."""
        events = self._events.untold()
        self._waiters.wake(event["session_id"] for event in events if event["name"] in ENDS)
        self._events.tell(events)
        if len(events) == MOST_AT_ONCE:
            self.wake()

    def _sweep(self) -> None:
        """Now and then: records, leases, files and loop devices whose time is over."""
        if time.monotonic() < self._sweep_at:
            return
        self._sweep_at = time.monotonic() + min(
            SWEEP_S, self._settings.record_retention_s / 2, self._settings.lease_timeout_s / 2
        )
        gone = self._store.expire(
            record_s=self._settings.record_retention_s,
            lease_idle_s=self._settings.lease_timeout_s,
            lease_s=self._settings.file_retention_s,
        )
        if gone:
            log.info("%d records expired", gone)
        self._loops.sweep()
        too_old = time.time() - self._settings.file_retention_s
        for folder in (self._settings.trajectory_dir, self._settings.log_dir):
            for entry in os.scandir(folder):
                if entry.stat().st_mtime < too_old:
                    os.unlink(entry.path)

    def _start(self, session_id: str) -> None:
        row = self._store.admit(session_id)
        if row is None:
            return
        try:
            task = self._catalog.get(row["mode"], row["task_id"])
            pid = self._executor.launch(Job(session_id, row["attempt"], row["base_url"], row["api_key"], task))
        except StackError as failure:
            if not (
                failure.transient
                and self._store.requeue(session_id, failure, attempt=row["attempt"], most_attempts=MOST_ATTEMPTS)
            ):
                self._store.end_without_result(session_id, failure, attempt=row["attempt"])
            return
        self._watched[pid] = (session_id, row["attempt"])
        if not self._executor.watch(pid):
            self._bury(pid)

    def _bury_ended_workers(self) -> None:
        for pid in self._executor.ended():
            self._bury(pid)

    def _bury(self, pid: int) -> None:
        """A worker has ended: normally it has recorded the end; if it was killed, what is left of it goes, and we record it."""
        session_id, attempt = self._watched.pop(pid)
        self._stop_asked_at.pop((session_id, attempt), None)
        lost = WorkerLost(
            f"the worker (pid {pid}) ended without a result; see {self._settings.log_dir}/{session_id}.log"
        )
        again = self._store.requeue(session_id, lost, attempt=attempt, most_attempts=MOST_ATTEMPTS)
        if again or self._store.end_without_result(session_id, lost, attempt=attempt):
            self._executor.kill_group(pid)
            cgroup.remove_cgroups(self._settings.scratch_dir, f"{session_id}.{attempt}".__eq__)
            shutil.rmtree(self._settings.scratch_dir / f"{session_id}.{attempt}", ignore_errors=True)

    def _stop_unwanted(self) -> list[sqlite3.Row]:
        """Ask the workers of cancelled or overdue sessions to stop; end those that do not. Returns the active sessions."""
        now = time.time()
        active = self._store.active()
        for row in active:
            waits_s = now - row["waiting_since"] if row["waiting_since"] else 0.0
            overdue = now - row["started_at"] - row["waited_s"] - waits_s > self._settings.session_timeout_s
            if not (row["cancel_requested"] or overdue) or row["worker_pid"] is None:
                continue
            worker, key = (row["worker_pid"], row["worker_start_ticks"]), (row["id"], row["attempt"])
            if overdue and not row["cancel_requested"]:
                limit = f"AGENT_SERVER_SESSION_TIMEOUT_S={self._settings.session_timeout_s:g}"
                self._store.end_without_result(
                    row["id"], ServerError(f"the session outlasted {limit}"), attempt=row["attempt"]
                )
            if key not in self._stop_asked_at:
                self._stop_asked_at[key] = now
                self._executor.signal(*worker, signal.SIGTERM)
            elif now - self._stop_asked_at[key] > STOP_GRACE_S:
                self._executor.signal(*worker, signal.SIGKILL)
        return active

    def _adopt(self) -> None:
        """Watch the workers of an earlier server that still run. Those that are gone have failed."""
        for row in self._store.active():
            pid, key = row["worker_pid"], (row["id"], row["attempt"])
            if pid is not None and self._executor.watch(pid, row["worker_start_ticks"]):
                self._watched[pid] = key
                continue
            lost = WorkerLost("the server was restarted, and the session's worker was gone")
            if not self._store.requeue(row["id"], lost, attempt=row["attempt"], most_attempts=MOST_ATTEMPTS):
                self._store.end_without_result(row["id"], lost, attempt=row["attempt"])
