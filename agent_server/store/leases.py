"""Leases of task rows: a group keeps one row, and each run goes through its own epochs.

Each function runs inside an open write transaction.
Invariant: the samples of a group share one row, and a run leases every row once before it leases any again. A group
without a completed session gives its position back, and the next new group of the run takes that position.
"""

import sqlite3
import time

from agent_server.tasks.order import TaskOrder
from client.wire import Mode, SessionRequest


def lease(db: sqlite3.Connection, request: SessionRequest, order: TaskOrder) -> str:
    """Id of the row for the request's group, leased now if the group is new. Raises NotFound for a wrong `task_id`."""
    held = db.execute(
        "SELECT task_id FROM leases WHERE run_id = ? AND mode = ? AND group_id = ?",
        (request.run_id, request.mode, request.group_id),
    ).fetchone()
    if request.task_id:
        order.check(request.mode, request.task_id)
        if held is None:
            _insert(db, request, request.task_id, None)
        return request.task_id
    if held:
        return held["task_id"]
    position = _take_position(db, request.run_id, request.mode)
    task_id = order.task_at(request.mode, position)
    _insert(db, request, task_id, position)
    return task_id


def mark_completed(db: sqlite3.Connection, run_id: str, mode: str, group_id: str) -> None:
    """A session of the group has completed: its row counts as used."""
    db.execute(
        "UPDATE leases SET completed = 1 WHERE run_id = ? AND mode = ? AND group_id = ?", (run_id, mode, group_id)
    )


def return_idle(db: sqlite3.Connection, idle_s: float) -> int:
    """Give back the positions of groups without a completed session, and without a live one for `idle_s` seconds.
    Returns how many."""
    since = time.time() - idle_s
    idle = db.execute(
        "SELECT run_id, mode, group_id, position FROM leases AS l"
        " WHERE NOT completed AND created_at < ? AND NOT EXISTS ("
        " SELECT 1 FROM sessions AS s WHERE s.run_id = l.run_id AND s.mode = l.mode AND s.group_id = l.group_id"
        " AND COALESCE(s.ended_at, ?) >= ?)",
        (since, since, since),
    ).fetchall()
    for row in idle:
        group = (row["run_id"], row["mode"], row["group_id"])
        db.execute("DELETE FROM leases WHERE run_id = ? AND mode = ? AND group_id = ?", group)
        if row["position"] is not None:
            position = (row["run_id"], row["mode"], row["position"])
            db.execute("INSERT OR IGNORE INTO returned_rows VALUES (?, ?, ?)", position)
    return len(idle)


def drop_old(db: sqlite3.Connection, age_s: float) -> None:
    """Drop leases of completed groups, `age_s` seconds old, without a session on record."""
    db.execute(
        "DELETE FROM leases AS l WHERE completed AND created_at < ? AND NOT EXISTS ("
        " SELECT 1 FROM sessions AS s WHERE s.run_id = l.run_id AND s.mode = l.mode AND s.group_id = l.group_id)",
        (time.time() - age_s,),
    )


def _insert(db: sqlite3.Connection, request: SessionRequest, task_id: str, position: int | None) -> None:
    db.execute(
        "INSERT INTO leases (run_id, mode, group_id, task_id, position, created_at) VALUES (?, ?, ?, ?, ?, ?)",
        (request.run_id, request.mode, request.group_id, task_id, position, time.time()),
    )


def _take_position(db: sqlite3.Connection, run_id: str, mode: Mode) -> int:
    """The first position that was given back, else the next new one."""
    (returned,) = db.execute(
        "SELECT MIN(position) FROM returned_rows WHERE run_id = ? AND mode = ?", (run_id, mode)
    ).fetchone()
    if returned is not None:
        db.execute("DELETE FROM returned_rows WHERE run_id = ? AND mode = ? AND position = ?", (run_id, mode, returned))
        return returned
    (position,) = db.execute(
        "INSERT INTO sequences (run_id, mode, next_position) VALUES (?, ?, 1)"
        " ON CONFLICT (run_id, mode) DO UPDATE SET next_position = next_position + 1 RETURNING next_position - 1",
        (run_id, mode),
    ).fetchone()
    return position
