"""Named integers in the table `numbers`: the limits in force, and the outbox position.

The outbox position is the id of the last published event.

Each function runs inside an open transaction.
"""

import sqlite3

PUBLISHED = "events told"  # the outbox position's name in databases since the first release


def read_value(db: sqlite3.Connection, name: str, *, default: int | None = None) -> int | None:
    """The value, `default` where it was never set."""
    row = db.execute("SELECT value FROM numbers WHERE name = ?", (name,)).fetchone()
    return row["value"] if row else default


def set_value(db: sqlite3.Connection, name: str, value: int) -> None:
    """Set the value."""
    db.execute("INSERT OR REPLACE INTO numbers VALUES (?, ?)", (name, value))
