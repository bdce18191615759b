"""Per-session wake-ups for long polls: a session's end wakes only the requests that wait for that session.

Invariant: a request registers before it reads the store, so an end between the read and the wait is not missed.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from agent_server.store.store import Store
from client.wire import SessionView

REREAD_S = 60.0  # a waiting request reads the store this often, also without a wake-up


class LongPolls:
    """The waiting requests of one server."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._waiting: dict[str, list[threading.Event]] = {}
        self._closed = False

    def wait_terminal(self, session_id: str, timeout_s: float) -> SessionView:
        """The session as soon as it is terminal, or its state when the time is up. Raises NotFound."""
        deadline = time.monotonic() + timeout_s
        with self._registered(session_id) as ended:
            while True:
                view = self._store.view(session_id)
                remaining_s = deadline - time.monotonic()
                if view.status.terminal or remaining_s <= 0 or self._closed:
                    return view
                ended.wait(min(remaining_s, REREAD_S))

    def wake(self, session_ids: Iterable[str]) -> None:
        """Wake the requests that wait for these sessions."""
        with self._lock:
            events = [event for session_id in session_ids for event in self._waiting.get(session_id, ())]
        for event in events:
            event.set()

    def close(self) -> None:
        """Answer every waiting request now, and every later one at once."""
        with self._lock:
            self._closed = True
            events = [event for waiting in self._waiting.values() for event in waiting]
        for event in events:
            event.set()

    @contextmanager
    def _registered(self, session_id: str) -> Iterator[threading.Event]:
        """An event that is set when the session ends, or when the long polls close."""
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
