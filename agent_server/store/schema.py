"""The database's shape, as numbered migrations.

Invariant: a migration once released never changes; `PRAGMA user_version` counts those applied.
"""

import sqlite3

MIGRATIONS = (
    """
    CREATE TABLE sessions (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,      -- queue order
        id TEXT NOT NULL UNIQUE,
        client_session_id TEXT NOT NULL UNIQUE,
        group_id TEXT NOT NULL,
        mode TEXT NOT NULL,
        task_id TEXT NOT NULL,
        base_url TEXT NOT NULL,
        api_key TEXT NOT NULL,
        metadata TEXT NOT NULL,
        status TEXT NOT NULL DEFAULT 'queued',
        cancel_requested INTEGER NOT NULL DEFAULT 0,
        attempt INTEGER NOT NULL DEFAULT 0,         -- fences late results: only the current attempt may write
        worker_pid INTEGER,
        worker_start_ticks INTEGER,                 -- with the pid, tells the worker from a later process
        created_at REAL NOT NULL,                   -- Unix seconds
        started_at REAL,
        ended_at REAL,
        error TEXT,
        agent_exit_status TEXT,
        submission TEXT,
        reward REAL,
        n_calls INTEGER,
        grade TEXT,
        seconds TEXT NOT NULL DEFAULT '{}',
        CHECK ((status = 'completed') = (reward IS NOT NULL))
    );
    CREATE INDEX sessions_by_status ON sessions (status, mode, seq);
    CREATE TABLE leases (
        mode TEXT NOT NULL,
        group_id TEXT NOT NULL,
        task_id TEXT NOT NULL,
        position INTEGER,                           -- place in the endless sequence of epochs; NULL: row asked for by name
        created_at REAL NOT NULL,
        PRIMARY KEY (mode, group_id)
    );
    CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session_id TEXT NOT NULL,
        at REAL NOT NULL,
        name TEXT NOT NULL,
        data TEXT NOT NULL
    );
    CREATE INDEX events_by_session ON events (session_id, id);
    """,
)


def migrate(database: sqlite3.Connection) -> None:
    """Bring the database to the newest shape; each migration is applied whole or not at all."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        database.executescript(f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number}; COMMIT;")
