"""Changes of a single session's row.

Each function runs inside an open write transaction.
Invariant: a change of a session's state also adds an event to the outbox. The key stands in the column `api_key` alone,
until the session ends.
"""

import json
import sqlite3
import time
from typing import Any

from agent_server.store import leases, outbox
from agent_server.store.counters import read_value
from client.errors import Conflict, ServerBusy
from client.redaction import Redaction, fingerprint
from client.wire import SessionRequest, Status

ACTIVE = (Status.RUNNING, Status.GRADING)  # of sessions that hold a slot


class Fenced(Exception):
    """This attempt is not (or no longer) the one that may write.

    No StackError: the session goes on or has ended without this worker, so there is no error to record.
    """


def check_queue_limit(db: sqlite3.Connection) -> None:
    """Raises ServerBusy where the queue is full."""
    limit = read_value(db, "queue")
    if limit is None:
        return
    (n_queued,) = db.execute("SELECT COUNT(*) FROM sessions WHERE status = 'queued'").fetchone()
    if n_queued >= limit:
        raise ServerBusy(
            f"{n_queued} sessions are queued and the queue holds {limit} (AGENT_SERVER_QUEUE_LIMIT); ask again later"
        )


def without_key(request: SessionRequest) -> SessionRequest:
    """The request as it is recorded: where a name or the metadata has the key, they have its fingerprint instead."""
    redaction = Redaction(request.api_key)
    fields = {name: redaction(value) for name, value in request if name != "api_key"}
    return request.model_copy(update=fields)


def find(db: sqlite3.Connection, request: SessionRequest) -> sqlite3.Row | None:
    """The session that this name already has in its run, or None. `request`: see `without_key`."""
    return db.execute(
        "SELECT * FROM sessions WHERE run_id = ? AND client_session_id = ?", (request.run_id, request.session_id)
    ).fetchone()


def check_same(row: sqlite3.Row, request: SessionRequest) -> None:
    """Raises Conflict with the first field in which the request differs from the one that made the session.

    A request without a `task_id` leaves the choice to the server, so it differs from none.
    """
    recorded = {
        "mode": (row["mode"], request.mode),
        "group_id": (row["group_id"], request.group_id),
        "base_url": (row["base_url"], request.base_url),
        "api_key": (row["key_fingerprint"], fingerprint(request.api_key)),
        "task_id": (row["task_id"], request.task_id or row["task_id"]),
        "metadata": (json.loads(row["metadata"]), json.loads(json.dumps(request.metadata))),
    }
    for field, (first, now) in recorded.items():
        if first != now:
            raise Conflict(
                f"field '{field}': this session_id already names a session with another {field};"
                " repeat the first request, or choose a new session_id",
                field=field,
            )


def insert(db: sqlite3.Connection, session_id: str, request: SessionRequest, task_id: str) -> None:
    """Add a queued session. `request`: see `without_key`."""
    db.execute(
        "INSERT INTO sessions (id, run_id, client_session_id, group_id, mode, task_id, base_url, api_key,"
        " key_fingerprint, metadata, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            session_id,
            request.run_id,
            request.session_id,
            request.group_id,
            request.mode,
            task_id,
            request.base_url,
            request.api_key,
            fingerprint(request.api_key),
            json.dumps(request.metadata),
            time.time(),
        ),
    )
    about = {"task_id": task_id, "run_id": request.run_id, "group_id": request.group_id, "mode": request.mode}
    outbox.add_event(db, session_id, "queued", about)
    _warn_of_large_group(db, session_id, request)


def _warn_of_large_group(db: sqlite3.Connection, session_id: str, request: SessionRequest) -> None:
    """One event per group, at the first request over the limit: a trainer that starts whole groups would deadlock."""
    query = "SELECT COUNT(*) FROM sessions WHERE run_id = ? AND mode = ? AND group_id = ? AND ended_at IS NULL"
    (alive,) = db.execute(query, (request.run_id, request.mode, request.group_id)).fetchone()
    limit = read_value(db, request.mode)
    if limit is not None and alive == limit + 1:
        variable = f"AGENT_SERVER_{request.mode.upper()}_CONCURRENCY"
        remedy = f"raise {variable} to the group's size if its samples must run together"
        outbox.add_event(db, session_id, "group_over_limit", {"alive": alive, "limit": limit, "remedy": remedy})


def update_attempt(db: sqlite3.Connection, session_id: str, attempt: int, change: str, *values: Any) -> None:
    """Change the row on behalf of its current attempt. `change`: the SET clause. Raises Fenced for another attempt."""
    query = f"UPDATE sessions SET {change} WHERE id = ? AND attempt = ? AND status IN (?, ?)"
    if not db.execute(query, (*values, session_id, attempt, *ACTIVE)).rowcount:
        raise Fenced(f"session {session_id}: attempt {attempt} is not the current one")


def end(db: sqlite3.Connection, session_id: str, status: Status, **fields: Any) -> None:
    """Set the terminal status and these columns, without the session's key, which is dropped."""
    now = time.time()
    redaction = key_redaction(db, session_id)
    columns = {"status": str(status), "ended_at": now, "api_key": ""} | {
        name: json.dumps(value) if isinstance(value, dict) else value for name, value in redaction(fields).items()
    }
    db.execute(
        f"UPDATE sessions SET {', '.join(f'{name} = ?' for name in columns)} WHERE id = ?",
        (*columns.values(), session_id),
    )
    row = db.execute("SELECT * FROM sessions WHERE id = ?", (session_id,)).fetchone()
    if status is Status.COMPLETED:
        leases.mark_completed(db, row["run_id"], row["mode"], row["group_id"])
    about = _ending(row) | {"total_s": round(now - row["created_at"], 3)}
    outbox.add_event(db, session_id, str(status), about)


def key_redaction(db: sqlite3.Connection, session_id: str) -> Redaction:
    """Removes the key of a session that has not ended."""
    (key,) = db.execute("SELECT api_key FROM sessions WHERE id = ?", (session_id,)).fetchone()
    return Redaction(key)


def _ending(row: sqlite3.Row) -> dict[str, Any]:
    """The fields of a session's last event; what is not set is left out."""
    columns = ("attempt", "agent_exit_status", "reward", "n_calls", "peak_memory_bytes")
    about = {name: row[name] for name in columns if row[name] is not None}
    if row["grade"]:
        grade = json.loads(row["grade"])
        about |= {"resolved": grade.get("resolved", False), "grade_status": grade.get("status", "")}
    return about | {
        name: value for name in ("error", "seconds", "cpu_seconds") if (value := json.loads(row[name] or "{}"))
    }
