"""Database schema, as numbered migrations.

Invariant: a migration once released never changes; `PRAGMA user_version` counts those applied.
"""

import sqlite3

from client.redaction import Redaction, fingerprint

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
        worker_start_ticks INTEGER,                 -- with the pid, distinguishes the worker from a later process
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
        position INTEGER,                           -- in the endless sequence of epochs; NULL: row requested by id
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
    # Names are unique within a run, so that trainers do not meet; retries, waiting and cost are recorded.
    """
    ALTER TABLE sessions RENAME TO old_sessions;
    DROP INDEX sessions_by_status;
    CREATE TABLE sessions (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,      -- queue order
        id TEXT NOT NULL UNIQUE,
        run_id TEXT NOT NULL DEFAULT '',
        client_session_id TEXT NOT NULL,
        group_id TEXT NOT NULL,
        mode TEXT NOT NULL,
        task_id TEXT NOT NULL,
        base_url TEXT NOT NULL,
        api_key TEXT NOT NULL,
        metadata TEXT NOT NULL,
        status TEXT NOT NULL DEFAULT 'queued',
        cancel_requested INTEGER NOT NULL DEFAULT 0,
        attempt INTEGER NOT NULL DEFAULT 0,         -- fences late results: only the current attempt may write
        model_called INTEGER NOT NULL DEFAULT 0,    -- another attempt would show the trainer a second conversation
        worker_pid INTEGER,
        worker_start_ticks INTEGER,                 -- with the pid, distinguishes the worker from a later process
        created_at REAL NOT NULL,                   -- Unix seconds
        started_at REAL,
        ended_at REAL,
        waiting_since REAL,                         -- set while the worker waits for a semaphore
        waited_s REAL NOT NULL DEFAULT 0,           -- for semaphores, this attempt; not in the time limit
        error TEXT,
        agent_exit_status TEXT,
        submission TEXT,
        reward REAL,
        n_calls INTEGER,
        grade TEXT,
        seconds TEXT NOT NULL DEFAULT '{}',
        cpu_seconds TEXT NOT NULL DEFAULT '{}',
        peak_memory_bytes INTEGER,
        UNIQUE (run_id, client_session_id),
        CHECK ((status = 'completed') = (reward IS NOT NULL))
    );
    INSERT INTO sessions (seq, id, client_session_id, group_id, mode, task_id, base_url, api_key, metadata, status,
            cancel_requested, attempt, model_called, worker_pid, worker_start_ticks, created_at, started_at, ended_at,
            error, agent_exit_status, submission, reward, n_calls, grade, seconds)
        SELECT seq, id, client_session_id, group_id, mode, task_id, base_url, api_key, metadata, status,
            cancel_requested, attempt, 1, worker_pid, worker_start_ticks, created_at, started_at, ended_at,
            error, agent_exit_status, submission, reward, n_calls, grade, seconds FROM old_sessions;
    DROP TABLE old_sessions;
    CREATE INDEX sessions_by_status ON sessions (status, mode, seq);
    CREATE INDEX sessions_by_group ON sessions (run_id, mode, group_id);
    CREATE INDEX sessions_by_end ON sessions (ended_at);

    ALTER TABLE leases RENAME TO old_leases;
    CREATE TABLE leases (
        run_id TEXT NOT NULL DEFAULT '',
        mode TEXT NOT NULL,
        group_id TEXT NOT NULL,
        task_id TEXT NOT NULL,
        position INTEGER,                           -- in the endless sequence of epochs; NULL: row requested by id
        created_at REAL NOT NULL,
        completed INTEGER NOT NULL DEFAULT 0,       -- a session of the group has completed: the row counts as used
        PRIMARY KEY (run_id, mode, group_id)
    );
    INSERT INTO leases (mode, group_id, task_id, position, created_at, completed)
        SELECT mode, group_id, task_id, position, created_at, 1 FROM old_leases;
    CREATE TABLE sequences (                        -- next position of a run in its endless sequence of epochs
        run_id TEXT NOT NULL,
        mode TEXT NOT NULL,
        next_position INTEGER NOT NULL,
        PRIMARY KEY (run_id, mode)
    );
    INSERT INTO sequences
        SELECT '', mode, MAX(position) + 1 FROM old_leases WHERE position IS NOT NULL GROUP BY mode;
    DROP TABLE old_leases;
    CREATE TABLE returned_rows (                    -- positions given back: leased again before new ones
        run_id TEXT NOT NULL,
        mode TEXT NOT NULL,
        position INTEGER NOT NULL,
        PRIMARY KEY (run_id, mode, position)
    );
    CREATE TABLE numbers (  -- limits in force, id of the last published event
        name TEXT PRIMARY KEY,
        value INTEGER NOT NULL
    );
    CREATE INDEX events_by_time ON events (at);
    """,
    # Set while the server stops an overdue session: the session then fails with this error.
    """
    ALTER TABLE sessions ADD COLUMN stop_error TEXT;
    """,
    # A key is dropped when its session ends. Its fingerprint stays, so that a repeated request is still recognised.
    """
    ALTER TABLE sessions ADD COLUMN key_fingerprint TEXT NOT NULL DEFAULT '';
    UPDATE sessions SET key_fingerprint = fingerprint(api_key), group_id = redact(group_id, api_key),
        client_session_id = redact(client_session_id, api_key), metadata = redact(metadata, api_key);
    UPDATE sessions SET api_key = '' WHERE ended_at IS NOT NULL;
    """,
)


def migrate(database: sqlite3.Connection) -> None:
    """Apply the missing migrations, each whole or not at all."""
    database.create_function("fingerprint", 1, fingerprint)
    database.create_function("redact", 2, lambda text, key: Redaction(key)(text))
    (version,) = database.execute("PRAGMA user_version").fetchone()
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        database.executescript(f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number}; COMMIT;")
