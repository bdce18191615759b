"""Who waits for which session: a thousand long polls sleep here, and an end wakes only its own.

Invariant: a waiter registers before it looks at the store, so an end between the look and the sleep is not missed.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class LongPolls:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, list[threading.Event]] = {}
        self._closed = False

    @contextmanager
    def waiting(self, session_id: str) -> Iterator[threading.Event]:
        """An event that is set when the session ends, or when nobody shall wait any longer."""
        event = threading.Event()
        with self._lock:
            self._waiting.setdefault(session_id, []).append(event)
            if self._closed:
                event.set()
        try:
            yield event
        finally:
            with self._lock:
                events = self._waiting[session_id]
                events.remove(event)
                if not events:
                    del self._waiting[session_id]

    @property
    def closed(self) -> bool:
        return self._closed

    def wake(self, session_ids: Iterable[str]) -> None:
        with self._lock:
            events = [event for session_id in session_ids for event in self._waiting.get(session_id, ())]
        for event in events:
            event.set()

    def close(self) -> None:
        """Wake everybody, and let nobody wait from now on."""
        with self._lock:
            self._closed = True
            events = [event for waiting in self._waiting.values() for event in waiting]
        for event in events:
            event.set()
