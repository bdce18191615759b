"""Single changes of the store's tables, each for a write transaction that is open.

Invariant: whatever changes a session's state also leaves an event.
"""

import json
import sqlite3
import time
from typing import Any

from client.wire import SessionRequest, Status


class Fenced(Exception):
    """This attempt is not (or no longer) the one that may write."""


def current(db: sqlite3.Connection, session_id: str, attempt: int, change: str, *values: Any) -> None:
    """Change the session for the attempt that holds it. Raises Fenced for any other."""
    query = f"UPDATE sessions SET {change} WHERE id = ? AND attempt = ? AND status IN ('running', 'grading')"
    if not db.execute(query, (*values, session_id, attempt)).rowcount:
        raise Fenced(f"session {session_id}: attempt {attempt} is not the current one")


def warn_of_large_group(db: sqlite3.Connection, session_id: str, request: SessionRequest) -> None:
    """Once a group, at the first request that shows it: a trainer that starts only whole groups would wait for ever."""
    query = "SELECT COUNT(*) FROM sessions WHERE run_id = ? AND mode = ? AND group_id = ? AND ended_at IS NULL"
    (alive,) = db.execute(query, (request.run_id, request.mode, request.group_id)).fetchone()
    limit = counter(db, request.mode, default=None)
    if limit is not None and alive == limit + 1:
        remedy = f"raise AGENT_SERVER_{request.mode.upper()}_CONCURRENCY to the group's size if its samples must run together"
        event(db, session_id, "group_over_limit", {"alive": alive, "limit": limit, "remedy": remedy})


def counter(db: sqlite3.Connection, name: str, *, default: int | None) -> int | None:
    """A limit, or how far something has come."""
    found = db.execute("SELECT value FROM numbers WHERE name = ?", (name,)).fetchone()
    return found["value"] if found else default


def set_counter(db: sqlite3.Connection, name: str, value: int) -> None:
    """See `counter`."""
    db.execute("INSERT OR REPLACE INTO numbers VALUES (?, ?)", (name, value))


def end(db: sqlite3.Connection, session_id: str, status: Status, **fields: Any) -> None:
    """Give the session its terminal status and these columns."""
    now = time.time()
    columns = {"status": str(status), "ended_at": now} | {
        name: json.dumps(value) if isinstance(value, dict) else value for name, value in fields.items()
    }
    db.execute(
        f"UPDATE sessions SET {', '.join(f'{name} = ?' for name in columns)} WHERE id = ?",
        (*columns.values(), session_id),
    )
    row = db.execute("SELECT * FROM sessions WHERE id = ?", (session_id,)).fetchone()
    if status is Status.COMPLETED:
        of_group = (row["run_id"], row["mode"], row["group_id"])
        db.execute("UPDATE leases SET completed = 1 WHERE run_id = ? AND mode = ? AND group_id = ?", of_group)
    about = {
        name: row[name]
        for name in ("attempt", "agent_exit_status", "reward", "n_calls", "peak_memory_bytes")
        if row[name] is not None
    }
    if row["grade"]:
        about["resolved"] = json.loads(row["grade"]).get("resolved", False)
    about |= {name: value for name in ("error", "seconds", "cpu_seconds") if (value := json.loads(row[name] or "{}"))}
    event(db, session_id, str(status), about | {"total_s": round(now - row["created_at"], 3)})


def event(db: sqlite3.Connection, session_id: str, name: str, data: dict[str, Any]) -> None:
    """Leave a record of what happened, for agent_server/observability/events.py to tell."""
    db.execute(
        "INSERT INTO events (session_id, at, name, data) VALUES (?, ?, ?, ?)",
        (session_id, time.time(), name, json.dumps(data)),
    )
