"""The server's one moving part: looks at the store, asks the scheduler, tells the executor.

A thread that reconciles again and again: on every notification, and at least every half second, so that a lost
notification costs a moment. API threads wait here for a session's end.
Invariant: it keeps nothing that the store does not hold, except whom it asked to stop and when.
"""

import logging
import shutil
import signal
import socket
import threading
import time

from agent_server.config import Settings
from agent_server.executors.local import LocalExecutor
from agent_server.sandboxes.leftovers import reclaim
from agent_server.scheduler import admissions
from agent_server.store.store import Store
from agent_server.tasks.catalog import Catalog
from agent_server.worker import Job, notify
from client.errors import ConfigError, ServerError, StackError, WorkerLost
from client.wire import SessionView

log = logging.getLogger(__name__)
LOOK_AGAIN_S = 0.5
STOP_GRACE_S = 1.0  # between the polite signal to a cancelled session's worker and the one that cannot be ignored


class Dispatcher:
    def __init__(self, settings: Settings, store: Store, catalog: Catalog, executor: LocalExecutor):
        self._settings = settings
        self._store = store
        self._catalog = catalog
        self._executor = executor
        self._watched: dict[int, tuple[str, int]] = {}  # worker pid -> session, attempt
        self._stop_asked_at: dict[tuple[str, int], float] = {}
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="dispatcher", daemon=True)
        self._inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def start(self) -> None:
        """Adopt what an earlier server left running, then begin to dispatch; returns at once. Raises ConfigError, StorageError."""
        for folder in (self._settings.scratch_dir, self._settings.trajectory_dir, self._settings.log_dir):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            self._inbox.bind(self._settings.notify_address)
        except OSError as taken:
            raise ConfigError(
                f"another agent server works in AGENT_SERVER_WORK_DIR={self._settings.work_dir}; stop it or choose another folder"
            ) from taken
        self._inbox.settimeout(LOOK_AGAIN_S)
        self._adopt()
        if reclaimed := reclaim(self._settings, active={f"{row['id']}.{row['attempt']}" for row in self._store.active()}):
            log.warning("ended what killed workers had left of %s", ", ".join(reclaimed))
        self._thread.start()

    @property
    def ready(self) -> bool:
        return self._thread.is_alive() and self._executor.ready

    def stop(self) -> None:
        """Stop the sessions that run, then the dispatcher. Queued ones stay queued for the next start."""
        if not self._thread.is_alive():
            return
        for row in self._store.active():
            self._store.request_cancel(row["id"])
        self.wake()
        deadline = time.monotonic() + 2 * STOP_GRACE_S + 1.0
        while self._store.active() and time.monotonic() < deadline:
            time.sleep(0.02)
        self._stopping.set()
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
        while True:
            with self._changed:
                view = self._store.view(session_id)
                left_s = deadline - time.monotonic()
                if view.status.terminal or left_s <= 0:
                    return view
                self._changed.wait(min(left_s, 2.0))

    # --- the loop ---------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                self._executor.start()
                self._reconcile()
            except StackError as failure:
                log.error("dispatcher: %s", failure)
                time.sleep(LOOK_AGAIN_S)
            except Exception:
                log.exception("dispatcher: this pass failed and will be tried again")
                time.sleep(LOOK_AGAIN_S)
            with self._changed:
                self._changed.notify_all()
            self._sleep()

    def _sleep(self) -> None:
        """Until a notification or the next look; swallows further notifications that are there already."""
        try:
            self._inbox.recv(16)
            self._inbox.setblocking(False)
            while self._inbox.recv(16):
                pass
        except (TimeoutError, BlockingIOError):
            pass
        finally:
            self._inbox.settimeout(LOOK_AGAIN_S)

    def _reconcile(self) -> None:
        self._bury_ended_workers()
        self._stop_unwanted()
        active = self._store.active()
        running = {mode: sum(row["mode"] == mode for row in active) for mode in self._settings.limits}
        queued = {mode: self._store.queued(mode, limit) for mode, limit in self._settings.limits.items()}
        for session_id in admissions(queued, running, self._settings.limits):
            self._start(session_id)

    def _start(self, session_id: str) -> None:
        row = self._store.admit(session_id)
        if row is None:
            return
        try:
            task = self._catalog.get(row["mode"], row["task_id"])
            pid = self._executor.launch(Job(session_id, row["attempt"], row["base_url"], row["api_key"], task))
        except StackError as failure:
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
        lost = WorkerLost(f"the worker (pid {pid}) ended without a result; see {self._settings.log_dir}/{session_id}.log")
        if self._store.end_without_result(session_id, lost, attempt=attempt):
            self._executor.kill_group(pid)
            shutil.rmtree(self._settings.scratch_dir / f"{session_id}.{attempt}", ignore_errors=True)

    def _stop_unwanted(self) -> None:
        """Ask the workers of cancelled or overdue sessions to stop; end those that do not."""
        now = time.time()
        for row in self._store.active():
            overdue = now - row["started_at"] > self._settings.session_timeout_s
            if not (row["cancel_requested"] or overdue) or row["worker_pid"] is None:
                continue
            worker, key = (row["worker_pid"], row["worker_start_ticks"]), (row["id"], row["attempt"])
            if overdue and not row["cancel_requested"]:
                limit = f"AGENT_SERVER_SESSION_TIMEOUT_S={self._settings.session_timeout_s:g}"
                self._store.end_without_result(row["id"], ServerError(f"the session outlasted {limit}"), attempt=row["attempt"])
            if key not in self._stop_asked_at:
                self._stop_asked_at[key] = now
                self._executor.signal(*worker, signal.SIGTERM)
            elif now - self._stop_asked_at[key] > STOP_GRACE_S:
                self._executor.signal(*worker, signal.SIGKILL)

    def _adopt(self) -> None:
        """Watch the workers of an earlier server that still run. Those that are gone have failed."""
        for row in self._store.active():
            pid, key = row["worker_pid"], (row["id"], row["attempt"])
            if pid is not None and self._executor.watch(pid, row["worker_start_ticks"]):
                self._watched[pid] = key
                continue
            lost = WorkerLost("the server was restarted, and the session's worker was gone")
            self._store.end_without_result(row["id"], lost, attempt=row["attempt"])
