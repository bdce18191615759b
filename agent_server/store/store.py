"""All reads and writes of sessions and their events.

Every change of state is one UPDATE whose WHERE clause names the state it starts from, so a cancel, a worker and the
server may race and exactly one of them wins.
Invariant: a terminal session never changes again, and only the current attempt writes a result.
"""

import errno
import json
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_server.store import changes, views
from agent_server.store.changes import Fenced
from agent_server.store.schema import migrate
from agent_server.tasks import leases
from client.errors import Cancelled, DiskFull, NotFound, ServerBusy, StackError, StorageError
from client.wire import SessionRequest, SessionView, Status

DATABASE_NAME = "agent_server.sqlite"
BUSY_TIMEOUT_S = 30.0
BUSY_LOOK_MS = 2
ACTIVE = ("running", "grading")
PUBLISHED = "events told"  # the number of the last event that was passed on


class Store:
    """One connection, shared by a process's threads under a lock. Raises StorageError when the disk refuses."""

    def __init__(self, work_dir: Path):
        work_dir.mkdir(parents=True, exist_ok=True)
        self.path = work_dir / DATABASE_NAME
        with _disk_errors(self.path):
            # The records hold the sessions' model keys, so nobody else on the machine may read them.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            self._db = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, check_same_thread=False, isolation_level=None)
            self._db.row_factory = sqlite3.Row
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            migrate(self._db)
            self._db.execute(f"PRAGMA busy_timeout = {BUSY_LOOK_MS}")
        self._lock = threading.RLock()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: everything in it happens, or nothing."""
        with self._lock, _disk_errors(self.path):
            self.retry_while_locked("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def read(self, query: str, *values: Any) -> list[sqlite3.Row]:
        """Rows of one SELECT."""
        with self._lock, _disk_errors(self.path):
            return self.retry_while_locked(query, *values).fetchall()

    def retry_while_locked(self, query: str, *values: Any) -> sqlite3.Cursor:
        """Execute it as soon as no other process is writing. SQLite's own waiting looks again ever more rarely, up to 100 ms
        apart, which is long beside a write of one."""
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                return self._db.execute(query, values)
            except sqlite3.OperationalError as refused:
                if refused.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(BUSY_LOOK_MS / 1000)

    # --- the API's side -------------------------------------------------------------------------------------------

    def submit(
        self, request: SessionRequest, lease: Callable[[sqlite3.Connection, SessionRequest], str]
    ) -> tuple[str, Status]:
        """Queue a session and lease its row in one transaction; the same run's same client id again answers the session it
        made. Raises ServerBusy where the queue is full."""
        with self.transaction() as db:
            known = db.execute(
                "SELECT id, status FROM sessions WHERE run_id = ? AND client_session_id = ?",
                (request.run_id, request.session_id),
            ).fetchone()
            if known:
                return known["id"], Status(known["status"])
            limit = changes.counter(db, "queue", default=None)
            if (
                limit is not None
                and (n_queued := db.execute("SELECT COUNT(*) FROM sessions WHERE status = 'queued'").fetchone()[0])
                >= limit
            ):
                raise ServerBusy(
                    f"{n_queued} sessions are queued and the queue holds {limit} (AGENT_SERVER_QUEUE_LIMIT); ask again later"
                )
            task_id = lease(db, request)
            session_id = uuid.uuid4().hex
            db.execute(
                "INSERT INTO sessions (id, run_id, client_session_id, group_id, mode, task_id, base_url, api_key, metadata, created_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (session_id, request.run_id, request.session_id, request.group_id, request.mode, task_id, request.base_url,
                 request.api_key, json.dumps(request.metadata), time.time()),
            )  # fmt: skip
            about = {"task_id": task_id, "run_id": request.run_id, "group_id": request.group_id, "mode": request.mode}
            changes.event(db, session_id, "queued", about)
            changes.warn_of_large_group(db, session_id, request)
        return session_id, Status.QUEUED

    def view(self, session_id: str) -> SessionView:
        """Raises NotFound."""
        rows = self.read("SELECT * FROM sessions WHERE id = ?", session_id)
        if not rows:
            raise NotFound(f"no session {session_id!r}; it was never created here, or its record has expired")
        return views.view(rows[0])

    def request_cancel(self, session_id: str) -> Status:
        """Mark the session unwanted. A queued one is cancelled by this; a running one still has to be stopped."""
        with self.transaction() as db:
            row = db.execute("SELECT status FROM sessions WHERE id = ?", (session_id,)).fetchone()
            if not row:
                raise NotFound(f"no session {session_id!r}; it was never created here, or its record has expired")
            db.execute("UPDATE sessions SET cancel_requested = 1 WHERE id = ?", (session_id,))
            if row["status"] != Status.QUEUED:
                return Status(row["status"])
            changes.end(db, session_id, Status.CANCELLED, error=Cancelled("cancelled while queued").as_dict())
        return Status.CANCELLED

    def counts(self) -> dict[str, dict[str, int]]:
        """Sessions by mode and status."""
        found: dict[str, dict[str, int]] = {}
        for row in self.read("SELECT mode, status, COUNT(*) AS n FROM sessions GROUP BY mode, status"):
            found.setdefault(row["mode"], {})[row["status"]] = row["n"]
        return found

    # --- limits ---------------------------------------------------------------------------------------------------

    def limits(self) -> dict[str, int]:
        """The limits in force, by name."""
        return {
            row["name"]: row["value"] for row in self.read("SELECT name, value FROM numbers WHERE name != ?", PUBLISHED)
        }

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """Change some limits, for the server and for workers that run. Nothing that runs is stopped."""
        with self.transaction() as db:
            for name, value in limits.items():
                changes.set_counter(db, name, value)

    # --- the dispatcher's side ------------------------------------------------------------------------------------

    def unpublished_events(self, most: int) -> list[sqlite3.Row]:
        """Events after the last one told, oldest first, each with its session's run, group, mode and task if that is on record."""
        return self.read(
            "SELECT e.id, e.at, e.session_id, e.name, e.data, s.run_id, s.group_id, s.mode, s.task_id FROM events AS e"
            " LEFT JOIN sessions AS s ON s.id = e.session_id"
            " WHERE e.id > COALESCE((SELECT value FROM numbers WHERE name = ?), 0) ORDER BY e.id LIMIT ?", PUBLISHED, most,
        )  # fmt: skip

    def mark_published(self, event_id: int) -> None:
        """`unpublished_events` begins after this one from now on."""
        with self.transaction() as db:
            changes.set_counter(db, PUBLISHED, event_id)

    def expire(self, *, record_s: float, lease_idle_s: float, lease_s: float) -> int:
        """Drop the records of sessions that ended `record_s` ago and leases nobody needs; returns how many sessions went."""
        before = time.time() - record_s
        with self.transaction() as db:
            leases.return_idle(db, lease_idle_s)
            gone = db.execute("DELETE FROM sessions WHERE ended_at < ?", (before,)).rowcount
            told = changes.counter(db, PUBLISHED, default=0)
            db.execute(
                "DELETE FROM events WHERE at < ? AND id <= ? AND session_id NOT IN (SELECT id FROM sessions)",
                (before, told),
            )
            leases.forget_old(db, lease_s)
        return gone

    def queued(self, mode: str, limit: int) -> list[str]:
        """The first queued sessions of a mode, in order of arrival."""
        rows = self.read(
            "SELECT id FROM sessions WHERE status = 'queued' AND mode = ? ORDER BY seq LIMIT ?", mode, limit
        )
        return [row["id"] for row in rows]

    def active(self) -> list[sqlite3.Row]:
        """Sessions that hold a slot: admitted and not terminal."""
        return self.read("SELECT * FROM sessions WHERE status IN ('running', 'grading') ORDER BY seq")

    def admit(self, session_id: str) -> sqlite3.Row | None:
        """queued -> running as a new attempt; None where a cancel came first."""
        with self.transaction() as db:
            changed = db.execute(
                "UPDATE sessions SET status = 'running', attempt = attempt + 1, started_at = ?, worker_pid = NULL,"
                " worker_start_ticks = NULL, waiting_since = NULL, waited_s = 0"
                " WHERE id = ? AND status = 'queued' AND cancel_requested = 0",
                (time.time(), session_id),
            ).rowcount
            if not changed:
                return None
            row = db.execute("SELECT * FROM sessions WHERE id = ?", (session_id,)).fetchone()
            changes.event(
                db,
                session_id,
                "admitted",
                {"attempt": row["attempt"], "queue_s": round(row["started_at"] - row["created_at"], 3)},
            )
            return row

    def requeue(self, session_id: str, error: StackError, *, attempt: int, most_attempts: int) -> bool:
        """Put a session back to its place in the queue after an infrastructure failure, where that is safe: the model was
        not called yet, nobody cancelled, and attempts are left. False where it is not."""
        with self.transaction() as db:
            changed = db.execute(
                "UPDATE sessions SET status = 'queued', worker_pid = NULL, worker_start_ticks = NULL WHERE id = ? AND attempt = ?"
                " AND status = 'running' AND NOT cancel_requested AND NOT model_called AND attempt < ?",
                (session_id, attempt, most_attempts),
            ).rowcount
            if changed:
                changes.event(db, session_id, "retried", {"attempt": attempt, "error": error.as_dict()})
        return bool(changed)

    def end_without_result(self, session_id: str, error: StackError, *, attempt: int) -> bool:
        """For a session whose worker can no longer speak: cancelled if that was asked for, else failed. False if it is terminal."""
        with self.transaction() as db:
            row = db.execute(
                "SELECT attempt, status, cancel_requested FROM sessions WHERE id = ?", (session_id,)
            ).fetchone()
            if row is None or row["attempt"] != attempt or row["status"] not in ACTIVE:
                return False
            if row["cancel_requested"]:
                changes.end(
                    db, session_id, Status.CANCELLED, error=Cancelled("cancelled; its worker was killed").as_dict()
                )
            else:
                changes.end(db, session_id, Status.FAILED, error=error.as_dict())
        return True

    # --- the worker's side ----------------------------------------------------------------------------------------

    def register_worker(self, session_id: str, attempt: int, pid: int, start_ticks: int) -> None:
        """A worker's first act. After it a cancel finds the pid; before it, this finds the cancel. Raises Cancelled, Fenced."""
        with self.transaction() as db:
            row = db.execute(
                "SELECT attempt, status, cancel_requested FROM sessions WHERE id = ?", (session_id,)
            ).fetchone()
            if row is None or row["attempt"] != attempt or row["status"] != Status.RUNNING:
                raise Fenced(f"session {session_id}: attempt {attempt} is not the current one")
            db.execute(
                "UPDATE sessions SET worker_pid = ?, worker_start_ticks = ? WHERE id = ?",
                (pid, start_ticks, session_id),
            )
        if row["cancel_requested"]:
            raise Cancelled("cancelled before its worker began")

    def model_called(self, session_id: str, attempt: int) -> None:
        """The worker is about to make its first model call: from here on it is not safe to start over. Raises Fenced."""
        with self.transaction() as db:
            changes.current(db, session_id, attempt, "model_called = 1")
            changes.event(db, session_id, "model_called", {})

    def begin_wait(self, session_id: str, attempt: int, gate: str) -> None:
        """The worker waits at a gate; its time limit stands still. Raises Fenced."""
        with self.transaction() as db:
            changes.current(db, session_id, attempt, "waiting_since = ?", time.time())
            changes.event(db, session_id, "waiting", {"gate": gate})

    def end_wait(self, session_id: str, attempt: int) -> None:
        """The worker waits no longer. Raises Fenced."""
        with self.transaction() as db:
            changes.current(
                db, session_id, attempt, "waited_s = waited_s + ? - waiting_since, waiting_since = NULL", time.time()
            )

    def begin_grading(self, session_id: str, attempt: int) -> None:
        """running -> grading. Raises Fenced."""
        with self.transaction() as db:
            changes.current(db, session_id, attempt, "status = 'grading'")
            changes.event(db, session_id, "grading", {})

    def finish(self, session_id: str, attempt: int, status: Status, **fields: Any) -> None:
        """The session's end, written by its worker: once, whole. Raises Fenced when somebody ended it before."""
        with self.transaction() as db:
            row = db.execute("SELECT attempt, status FROM sessions WHERE id = ?", (session_id,)).fetchone()
            if row is None or row["attempt"] != attempt or row["status"] not in ACTIVE:
                raise Fenced(f"session {session_id}: attempt {attempt} has no say any more")
            changes.end(db, session_id, status, **fields)


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.OperationalError, OSError) as refused:
        full = (
            getattr(refused, "errno", None) == errno.ENOSPC
            or getattr(refused, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
        )
        kind = DiskFull if full else StorageError
        raise kind(
            f"cannot write {path}: {refused}; free space or permissions under the work directory, nothing is lost"
        ) from refused
