"""Store of the sessions: every read and write of the API, the server's loop and the workers.

A change of state is one write transaction that checks the state it starts from, so a cancel, a worker and the server
may race and exactly one of them wins.
Invariant: a terminal session never changes again, and only the current attempt writes a result.
"""

import json
import sqlite3
import time
import uuid
from collections.abc import Mapping
from typing import Any

from agent_server.store import leases, outbox, sessions, views
from agent_server.store.counters import PUBLISHED, set_value
from agent_server.store.database import Database
from agent_server.store.sessions import ACTIVE, Fenced
from agent_server.tasks.order import TaskOrder
from client.errors import Cancelled, NotFound, StackError
from client.wire import SessionRequest, SessionView, Status

SELECT_ACTIVE = (
    "SELECT status, cancel_requested, stop_error FROM sessions WHERE id = ? AND attempt = ? AND status IN (?, ?)"
)


class Store(Database):
    """Session records in `work_dir`. Every method may raise StorageError."""

    # --- the API ----------------------------------------------------------------------------------------------------

    def submit(self, request: SessionRequest, order: TaskOrder) -> tuple[str, Status]:
        """Queue a session and lease its row in one transaction; returns the session's id and status.

        The same request returns the session it made. Raises Conflict where another request has its client id in its
        run, ServerBusy where the queue is full, and NotFound for an unknown `task_id`.
        """
        request = sessions.without_key(request)
        with self.transaction() as db:
            if existing := sessions.find(db, request):
                sessions.check_same(existing, request)
                return existing["id"], Status(existing["status"])
            sessions.check_queue_limit(db)
            session_id = uuid.uuid4().hex
            sessions.insert(db, session_id, request, leases.lease(db, request, order))
        return session_id, Status.QUEUED

    def view(self, session_id: str) -> SessionView:
        """The session's record. Raises NotFound."""
        rows = self.read("SELECT * FROM sessions WHERE id = ?", session_id)
        if not rows:
            raise _not_found(session_id)
        return views.view(rows[0])

    def request_cancel(self, session_id: str, *, abandoned_s: float = 0.0) -> Status:
        """Cancel a queued session; mark an active one, whose worker still has to be stopped. Returns the new status.

        `abandoned_s`: the silence of its client, where that is the reason. A terminal session does not change. Raises
        NotFound.
        """
        with self.transaction() as db:
            row = db.execute("SELECT status FROM sessions WHERE id = ?", (session_id,)).fetchone()
            if not row:
                raise _not_found(session_id)
            status = Status(row["status"])
            if status.terminal:
                return status
            db.execute("UPDATE sessions SET cancel_requested = 1 WHERE id = ?", (session_id,))
            if abandoned_s:
                outbox.add_event(db, session_id, "abandoned", {"silent_s": abandoned_s})
            if status != Status.QUEUED:
                return status
            sessions.end(db, session_id, Status.CANCELLED, error=Cancelled("cancelled while queued").as_dict())
        return Status.CANCELLED

    def counts(self) -> dict[str, dict[str, int]]:
        """Number of sessions by mode and status."""
        counts: dict[str, dict[str, int]] = {}
        for row in self.read("SELECT mode, status, COUNT(*) AS n FROM sessions GROUP BY mode, status"):
            counts.setdefault(row["mode"], {})[row["status"]] = row["n"]
        return counts

    # --- limits -----------------------------------------------------------------------------------------------------

    def limits(self) -> dict[str, int]:
        """The limits in force, by name."""
        rows = self.read("SELECT name, value FROM numbers WHERE name != ?", PUBLISHED)
        return {row["name"]: row["value"] for row in rows}

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """Change some limits, for the server and for running workers. No running session is stopped."""
        with self.transaction() as db:
            for name, value in limits.items():
                set_value(db, name, value)

    # --- the server's loop ------------------------------------------------------------------------------------------

    def unpublished_events(self, limit: int) -> list[sqlite3.Row]:
        """Events after the last published one, oldest first, with run, group, mode and task of a session on record."""
        return self.read(outbox.SELECT_UNPUBLISHED, PUBLISHED, limit)

    def mark_published(self, event_id: int) -> None:
        """Mark all events up to this one as published."""
        with self.transaction() as db:
            outbox.mark_published(db, event_id)

    def expire(self, *, record_s: float, lease_idle_s: float, lease_s: float) -> int:
        """Drop records of sessions that ended `record_s` ago, and idle or old leases. Returns the number of records."""
        before = time.time() - record_s
        with self.transaction() as db:
            leases.return_idle(db, lease_idle_s)
            dropped = db.execute("DELETE FROM sessions WHERE ended_at < ?", (before,)).rowcount
            outbox.drop_published(db, before)
            leases.drop_old(db, lease_s)
        self.checkpoint()
        return dropped

    def list_live(self) -> list[str]:
        """Sessions that have not ended and are not being cancelled."""
        rows = self.read("SELECT id FROM sessions WHERE status IN ('queued', ?, ?) AND NOT cancel_requested", *ACTIVE)
        return [row["id"] for row in rows]

    def list_queued(self, mode: str, limit: int) -> list[str]:
        """The first queued sessions of a mode, in order of arrival."""
        rows = self.read(
            "SELECT id FROM sessions WHERE status = 'queued' AND mode = ? ORDER BY seq LIMIT ?", mode, limit
        )
        return [row["id"] for row in rows]

    def list_active(self) -> list[sqlite3.Row]:
        """Sessions that hold a slot: admitted and not terminal."""
        return self.read("SELECT * FROM sessions WHERE status IN (?, ?) ORDER BY seq", *ACTIVE)

    def is_active(self, session_id: str, attempt: int) -> bool:
        """Whether this attempt is the session's current one and holds its slot."""
        return bool(self.read(SELECT_ACTIVE, session_id, attempt, *ACTIVE))

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
            queue_s = round(row["started_at"] - row["created_at"], 3)
            outbox.add_event(db, session_id, "admitted", {"attempt": row["attempt"], "queue_s": queue_s})
            return row

    def record_worker(self, session_id: str, attempt: int, pid: int, start_ticks: int) -> None:
        """Record the process of a worker that has not done it itself (`register_worker`), so that it can be stopped by
        this server and the next. No effect where the attempt is over."""
        with self.transaction() as db:
            db.execute(
                "UPDATE sessions SET worker_pid = ?, worker_start_ticks = ? WHERE id = ? AND attempt = ?"
                " AND status = 'running' AND worker_pid IS NULL",
                (pid, start_ticks, session_id, attempt),
            )

    def requeue(self, session_id: str, error: StackError, *, attempt: int, max_attempts: int) -> bool:
        """Return a session to its place in the queue after an infrastructure failure, where a repetition is safe.

        It is safe while the model was not called, no stop was requested and attempts are left. False otherwise.
        """
        with self.transaction() as db:
            changed = db.execute(
                "UPDATE sessions SET status = 'queued', worker_pid = NULL, worker_start_ticks = NULL"
                " WHERE id = ? AND attempt = ? AND status = 'running' AND NOT cancel_requested AND NOT model_called"
                " AND stop_error IS NULL AND attempt < ?",
                (session_id, attempt, max_attempts),
            ).rowcount
            if changed:
                redaction = sessions.key_redaction(db, session_id)
                outbox.add_event(db, session_id, "retried", {"attempt": attempt, "error": redaction(error.as_dict())})
        return bool(changed)

    def fail_when_stopped(self, session_id: str, attempt: int, error: StackError) -> None:
        """Let the attempt fail with this error as soon as its worker has stopped; no effect on a terminal session.

        A result that the worker records first still counts, and so does a cancel.
        """
        with self.transaction() as db:
            if _active_row(db, session_id, attempt):
                stop_error = json.dumps(error.as_dict())
                db.execute("UPDATE sessions SET stop_error = ? WHERE id = ?", (stop_error, session_id))

    def end_without_result(self, session_id: str, error: StackError, *, attempt: int) -> None:
        """End a session without a worker: it could not be launched, was lost, or was killed.

        The session is cancelled where that was requested, and failed otherwise. No effect on a terminal session.
        """
        with self.transaction() as db:
            row = _active_row(db, session_id, attempt)
            if row and row["cancel_requested"]:
                sessions.end(db, session_id, Status.CANCELLED, error=Cancelled(f"cancelled; {error}").as_dict())
            elif row:
                sessions.end(db, session_id, Status.FAILED, error=_stop_error(row) or error.as_dict())

    # --- the worker -------------------------------------------------------------------------------------------------

    def register_worker(self, session_id: str, attempt: int, pid: int, start_ticks: int) -> None:
        """Record the worker's process: the first call of each worker. Raises Fenced.

        A later cancel signals this pid. An earlier one had no pid to signal, and raises Cancelled here.
        """
        with self.transaction() as db:
            row = _active_row(db, session_id, attempt)
            if row is None or row["status"] != Status.RUNNING:
                raise Fenced(f"session {session_id}: attempt {attempt} is not the current one")
            db.execute(
                "UPDATE sessions SET worker_pid = ?, worker_start_ticks = ? WHERE id = ?",
                (pid, start_ticks, session_id),
            )
        if row["cancel_requested"]:
            raise Cancelled("cancelled before its worker began")

    def record_model_call(self, session_id: str, attempt: int) -> None:
        """Record that the first model call is next: no other attempt is safe from here on. Raises Fenced."""
        with self.transaction() as db:
            sessions.update_attempt(db, session_id, attempt, "model_called = 1")
            outbox.add_event(db, session_id, "model_called", {})

    def begin_wait(self, session_id: str, attempt: int, semaphore: str) -> None:
        """The worker waits for a semaphore; its session's time limit stands still. Raises Fenced."""
        with self.transaction() as db:
            sessions.update_attempt(db, session_id, attempt, "waiting_since = ?", time.time())
            outbox.add_event(db, session_id, "waiting", {"gate": semaphore})

    def end_wait(self, session_id: str, attempt: int) -> None:
        """The worker holds the semaphore. Raises Fenced."""
        change = "waited_s = waited_s + ? - waiting_since, waiting_since = NULL"
        with self.transaction() as db:
            sessions.update_attempt(db, session_id, attempt, change, time.time())

    def begin_grading(self, session_id: str, attempt: int) -> None:
        """running -> grading. Raises Fenced."""
        with self.transaction() as db:
            sessions.update_attempt(db, session_id, attempt, "status = 'grading'")
            outbox.add_event(db, session_id, "grading", {})

    def finish(self, session_id: str, attempt: int, status: Status, **fields: Any) -> None:
        """Record the session's end: once, whole. Raises Fenced when it was ended before.

        The worker of an overdue session was stopped as if by a cancel; such a session fails (see `fail_when_stopped`).
        """
        with self.transaction() as db:
            row = _active_row(db, session_id, attempt)
            if row is None:
                raise Fenced(f"session {session_id}: attempt {attempt} is not the current one")
            stop_error = _stop_error(row)
            if stop_error and status != Status.COMPLETED and not row["cancel_requested"]:
                status, fields = Status.FAILED, fields | {"error": stop_error}
            sessions.end(db, session_id, status, **fields)


def _active_row(db: sqlite3.Connection, session_id: str, attempt: int) -> sqlite3.Row | None:
    """The session's row, where this attempt is its current one and not terminal."""
    return db.execute(SELECT_ACTIVE, (session_id, attempt, *ACTIVE)).fetchone()


def _stop_error(row: sqlite3.Row) -> dict[str, str] | None:
    """The error for which the server stops the session, or None."""
    return json.loads(row["stop_error"]) if row["stop_error"] else None


def _not_found(session_id: str) -> NotFound:
    return NotFound(f"no session {session_id!r}; it was never created here, or its record has expired")
