"""What happened, told outward: every event of the store goes once to events.jsonl, to the metrics and to the log.

Invariant: the store's events are the source and `mark_published` the place reached, so a restart goes on where it was. A crash
between writing and marking tells the last events twice; their `id` shows it.
"""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_server.store.store import Store
from client.wire import Status

log = logging.getLogger(__name__)
MOST_AT_ONCE = 1000
ROTATE_BYTES = 256 * 2**20
ENDS = {str(status) for status in Status if status.terminal}  # names of the events that end a session
WORTH_A_WARNING = {"failed", "retried", "group_over_limit"}


class EventLog:
    """`observers` are called with each event: a dict of `id, at` (Unix seconds), `session_id, name, run_id, group_id, mode,
    task_id`, and the event's own fields."""

    def __init__(self, store: Store, path: Path, observers: list[Callable[[dict[str, Any]], None]]):
        self._store, self._path, self._observers = store, path, observers

    def untold(self) -> list[dict[str, Any]]:
        """What is new, oldest first, up to MOST_AT_ONCE. Raises StorageError."""
        return [_as_dict(row) for row in self._store.unpublished_events(MOST_AT_ONCE)]

    def tell(self, events: list[dict[str, Any]]) -> None:
        """Pass them on, and count them as told. Raises StorageError, and OSError where the file cannot be written."""
        if not events:
            return
        self._write(events)
        self._store.mark_published(events[-1]["id"])
        for event in events:
            for observe in self._observers:
                observe(event)
            _log(event)

    def _write(self, events: list[dict[str, Any]]) -> None:
        if self._path.exists() and self._path.stat().st_size > ROTATE_BYTES:
            self._path.replace(self._path.with_suffix(".1.jsonl"))
        with self._path.open("a") as file:
            file.writelines(json.dumps(event, ensure_ascii=False) + "\n" for event in events)


def _as_dict(row: Any) -> dict[str, Any]:
    about = {name: row[name] for name in ("id", "at", "session_id", "name", "run_id", "group_id", "mode", "task_id")}
    return about | json.loads(row["data"])


def _log(event: dict[str, Any]) -> None:
    level = logging.WARNING if event["name"] in WORTH_A_WARNING else logging.INFO
    log.log(level, "session %s: %s", event["session_id"], event["name"], extra={"event": event})
