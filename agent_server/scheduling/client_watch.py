"""Cancels sessions whose clients are gone: nobody waits for them, and nobody has asked for a stated time.

A client that is killed cannot cancel its session. Its connection shows it, where it had a long poll open; otherwise its
silence does.
Invariant: a session that a request waits for is never cancelled here. Its memory is lost with the server: the next one
counts the silence from its own start.
"""

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from agent_server.scheduling.loop import IDLE_S
from agent_server.store.store import Store

CHECK_S = 5.0  # between two checks, at most
STALL_S = 30.0  # a check that is so late means that the server could not hear its clients
GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR
KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))  # a dead machine: 2 min


class ClientWatch:
    """The clients of one server's sessions. `timeout_s`: the silence after which a session is cancelled; 0: never."""

    def __init__(self, store: Store, timeout_s: float):
        self._store, self._timeout_s = store, timeout_s
        self._interval_s = max(IDLE_S, min(CHECK_S, timeout_s / 4))
        self._due = 0.0
        self._lock = threading.Lock()
        self._asked_at: dict[str, float] = {}  # session id -> time.monotonic()
        self._waiting: dict[socket.socket, str] = {}  # connection of a long poll -> session id

    def note(self, session_id: str) -> None:
        """A client asked for the session."""
        with self._lock:
            self._asked_at[session_id] = time.monotonic()

    @contextmanager
    def waiting(self, session_id: str, connection: socket.socket | None) -> Iterator[None]:
        """A client waits for the session while the block runs, unless its connection ends before."""
        if connection is not None:
            with suppress(OSError):  # a Unix socket has no keep-alive
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in KEEPALIVE:
                    connection.setsockopt(socket.IPPROTO_TCP, option, value)
            with self._lock:
                self._waiting[connection] = session_id
        self.note(session_id)
        try:
            yield
        finally:
            with self._lock:
                still_there = connection is None or self._waiting.pop(connection, None) is not None
            if still_there:
                self.note(session_id)

    def check(self) -> float:
        """Cancel the abandoned sessions, where a check is due. Returns the longest pause before the next call, in s.

        Raises StorageError.
        """
        now = time.monotonic()
        if not self._timeout_s or now < self._due:
            return IDLE_S
        if now - self._due > STALL_S:  # the server itself stood still: that is nobody's silence
            self._forget()
        self._due = now + self._interval_s
        abandoned = self._find_abandoned(self._store.list_live(), now)
        for session_id in abandoned:
            self._store.request_cancel(session_id, abandoned_s=self._timeout_s)
        return 0.0 if abandoned else IDLE_S

    def _forget(self) -> None:
        with self._lock:
            self._asked_at.clear()

    def _find_abandoned(self, live: list[str], now: float) -> list[str]:
        with self._lock:
            self._drop_lost_connections(now)
            self._asked_at = {session_id: self._asked_at.get(session_id, now) for session_id in live}
            waited_for = set(self._waiting.values())
            return [
                session_id
                for session_id, asked_at in self._asked_at.items()
                if session_id not in waited_for and now - asked_at > self._timeout_s
            ]

    def _drop_lost_connections(self, now: float) -> None:
        poll = select.poll()
        by_descriptor = {connection.fileno(): connection for connection in self._waiting}
        for descriptor in by_descriptor:  # none is closed here: each belongs to a request that is being served
            poll.register(descriptor, GONE)
        for descriptor, _ in poll.poll(0):
            self._asked_at[self._waiting.pop(by_descriptor[descriptor])] = now
