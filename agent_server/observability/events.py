"""Events of sessions as dicts, and the file events.jsonl.

An event has `id, at` (Unix seconds), `session_id, name, run_id, group_id, mode, task_id`, and fields of its own.
Invariant: events.jsonl holds one JSON object per line, oldest first, and is rotated by size.
"""

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_server.private_files import open_private
from client.wire import Status

ROTATE_BYTES = 256 * 2**20
FORGED = "forged"  # `grade_status` of a session whose test outcomes the canary run showed to be forged
ENDS = {str(status) for status in Status if status.terminal}  # names of the events that end a session
COLUMNS = ("id", "at", "session_id", "name", "run_id", "group_id", "mode", "task_id")

Event = dict[str, Any]


def to_event(row: sqlite3.Row) -> Event:
    """The event of a row of the store's outbox."""
    return {name: row[name] for name in COLUMNS} | json.loads(row["data"])


class EventLog:
    """The file, and one earlier file after a rotation."""

    def __init__(self, path: Path):
        self._path = path

    def append(self, events: Sequence[Event]) -> None:
        """Write the events. Raises OSError."""
        if self._path.exists() and self._path.stat().st_size > ROTATE_BYTES:
            self._path.replace(self._path.with_suffix(".1.jsonl"))
        with open(self._path, "a", opener=open_private) as file:
            file.writelines(json.dumps(event, ensure_ascii=False) + "\n" for event in events)
