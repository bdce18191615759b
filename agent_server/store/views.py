"""API views of session rows.

Invariant: reads one row, changes nothing.
"""

import json
import sqlite3

from client.wire import EXIT_CODES, SessionView, Status


def view(row: sqlite3.Row) -> SessionView:
    """The row as `GET /sessions/ID` answers it."""
    status = Status(row["status"])
    return SessionView(
        session_id=row["id"],
        client_session_id=row["client_session_id"],
        status=status,
        exit_code=EXIT_CODES.get(status),
        error=json.loads(row["error"]) if row["error"] else None,
        agent_exit_status=row["agent_exit_status"],
        submission=row["submission"],
        reward=row["reward"],
        n_calls=row["n_calls"],
        task_id=row["task_id"],
        grade=json.loads(row["grade"]) if row["grade"] else None,
        seconds=_waits(row) | json.loads(row["seconds"]),
        cpu_seconds=json.loads(row["cpu_seconds"]),
        peak_memory_bytes=row["peak_memory_bytes"],
    )


def _waits(row: sqlite3.Row) -> dict[str, float]:
    """Seconds in the queue until the last admission, and at semaphores since (as `gates`: the name clients read)."""
    return {"queue": row["started_at"] - row["created_at"], "gates": row["waited_s"]} if row["started_at"] else {}
