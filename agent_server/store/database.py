"""SQLite connection of one process: transactions, reads, retries while another process writes.

Invariant: an error of the disk becomes a StorageError with its remedy.
"""

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tenacity

from agent_server.store.schema import migrate
from client.errors import DiskFull, StorageError

DATABASE_NAME = "agent_server.sqlite"
BUSY_TIMEOUT_S = 30.0
BUSY_POLL_MS = 2


class Database:
    """One connection, shared by the process's threads under a lock. Raises StorageError when the disk refuses."""

    def __init__(self, work_dir: Path):
        work_dir.mkdir(parents=True, exist_ok=True)
        self.path = work_dir / DATABASE_NAME
        with _storage_errors(self.path):
            # The records hold the sessions' model keys: readable for this user alone.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            self._db = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, check_same_thread=False, isolation_level=None)
            self._db.row_factory = sqlite3.Row
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute("PRAGMA secure_delete = FAST")  # the keys of ended sessions leave the file, too
            migrate(self._db)
            self._db.execute(f"PRAGMA busy_timeout = {BUSY_POLL_MS}")
        self._lock = threading.RLock()

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: all of it happens, or nothing."""
        with self._lock, _storage_errors(self.path):
            retry_while_locked(self._db, "BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def checkpoint(self) -> None:
        """Empty the log of earlier writes, which may hold keys of ended sessions. Not while another process reads."""
        with self._lock, _storage_errors(self.path):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def read(self, query: str, *values: Any) -> list[sqlite3.Row]:
        """Rows of one SELECT."""
        with self._lock, _storage_errors(self.path):
            return retry_while_locked(self._db, query, *values).fetchall()


def retry_while_locked(db: sqlite3.Connection, query: str, *values: Any) -> sqlite3.Cursor:
    """Execute the query as soon as no other process writes. Raises sqlite3.OperationalError after BUSY_TIMEOUT_S.

    SQLite's own retries are up to 100 ms apart, long beside a write of one.
    """
    try:
        return db.execute(query, values)  # the usual case, without tenacity's 50 microseconds per call
    except sqlite3.OperationalError as refused:
        if not _is_locked(refused):
            raise
    return _retrying(db.execute, query, values)


def _is_locked(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


_retrying = tenacity.Retrying(
    retry=tenacity.retry_if_exception(_is_locked),
    wait=tenacity.wait_fixed(BUSY_POLL_MS / 1000),
    stop=tenacity.stop_after_delay(BUSY_TIMEOUT_S),
    reraise=True,
)


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.OperationalError, OSError) as refused:
        full = (
            getattr(refused, "errno", None) == errno.ENOSPC
            or getattr(refused, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
        )
        kind = DiskFull if full else StorageError
        raise kind(
            f"cannot write {path}: {refused}; free space or permissions under the work directory, nothing is lost"
        ) from refused
