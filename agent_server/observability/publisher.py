"""Publisher of the store's outbox: long polls, events.jsonl, metrics and the log receive every event once.

Invariant: long polls are woken before the event is written, also where the file cannot be written. The store
counts what is published, so a restart continues there; a crash between writing and counting repeats the last batch,
and the events' `id` shows it.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

from agent_server.observability.events import ENDS, FORGED, Event, EventLog, to_event
from agent_server.scheduling.loop import IDLE_S
from agent_server.store.store import Store

log = logging.getLogger(__name__)
BATCH = 1000
WARNINGS = {"failed", "retried", "abandoned", "group_over_limit"}


class Publisher:
    """`wake` gets the ids of the sessions that ended; each of `observers` gets every event."""

    def __init__(
        self,
        store: Store,
        event_log: EventLog,
        wake: Callable[[Iterable[str]], None],
        observers: Sequence[Callable[[Event], None]],
    ):
        self._store, self._event_log = store, event_log
        self._wake, self._observers = wake, observers

    def publish(self) -> float:
        """Publish one batch: in a burst, the workers wait for no more than that.

        Returns the longest pause in seconds until it must run again. Raises StorageError, and OSError where the file
        cannot be written.
        """
        events = [to_event(row) for row in self._store.unpublished_events(BATCH)]
        if not events:
            return IDLE_S
        self._wake(event["session_id"] for event in events if event["name"] in ENDS)
        self._event_log.append(events)
        self._store.mark_published(events[-1]["id"])
        for event in events:
            for observe in self._observers:
                observe(event)
            _log(event)
        return 0.0 if len(events) == BATCH else IDLE_S


def _log(event: Event) -> None:
    forged = event.get("grade_status") == FORGED
    level = logging.WARNING if forged or event["name"] in WARNINGS else logging.INFO
    what = f"{event['name']}, with forged test outcomes" if forged else event["name"]
    log.log(level, "session %s: %s", event["session_id"], what, extra={"event": event})
