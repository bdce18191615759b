"""Outbox of events: written in the transaction of the change, published by the server afterwards.

Each function runs inside an open transaction.
Invariant: an event is dropped only after it was published.
"""

import json
import sqlite3
import time
from typing import Any

from agent_server.store.counters import PUBLISHED, read_value, set_value

SELECT_UNPUBLISHED = (
    "SELECT e.id, e.at, e.session_id, e.name, e.data, s.run_id, s.group_id, s.mode, s.task_id FROM events AS e"
    " LEFT JOIN sessions AS s ON s.id = e.session_id"
    " WHERE e.id > COALESCE((SELECT value FROM numbers WHERE name = ?), 0) ORDER BY e.id LIMIT ?"
)


def add_event(db: sqlite3.Connection, session_id: str, name: str, data: dict[str, Any]) -> None:
    """Add an event, for agent_server/observability/publisher.py to publish."""
    db.execute(
        "INSERT INTO events (session_id, at, name, data) VALUES (?, ?, ?, ?)",
        (session_id, time.time(), name, json.dumps(data)),
    )


def mark_published(db: sqlite3.Connection, event_id: int) -> None:
    """Mark all events up to this one as published."""
    set_value(db, PUBLISHED, event_id)


def drop_published(db: sqlite3.Connection, before: float) -> None:
    """Drop published events older than `before` (Unix seconds) of sessions that are no longer on record."""
    db.execute(
        "DELETE FROM events WHERE at < ? AND id <= ? AND session_id NOT IN (SELECT id FROM sessions)",
        (before, read_value(db, PUBLISHED, default=0)),
    )
