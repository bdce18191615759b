"""Named counters: the limits in force, and the id of the last published event.

Each function runs inside an open transaction.
"""

import sqlite3

PUBLISHED = "events told"  # the counter's name in databases since the first release


def read_counter(db: sqlite3.Connection, name: str, *, default: int | None = None) -> int | None:
    """The counter's value, `default` where it was never set."""
    row = db.execute("SELECT value FROM numbers WHERE name = ?", (name,)).fetchone()
    return row["value"] if row else default


def set_counter(db: sqlite3.Connection, name: str, value: int) -> None:
    """Set the counter."""
    db.execute("INSERT OR REPLACE INTO numbers VALUES (?, ?)", (name, value))
