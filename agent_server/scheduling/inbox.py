"""Inbox of wake-up datagrams from workers and the API.

Invariant: one open inbox per work directory, so that two servers never share one. A datagram carries no data: a lost
one delays the next pass of the server's loop, and loses nothing.
"""

import socket
import time
from contextlib import suppress
from pathlib import Path

from client.errors import ConfigError

COALESCE_S = 0.005  # a burst of notifications causes one pass, not many


class Inbox:
    """Receiver for agent_server/worker/notification.py at the abstract UNIX `address` of `work_dir`'s server."""

    def __init__(self, address: str, work_dir: Path):
        self._address, self._work_dir = address, work_dir
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def open(self) -> None:
        """Begin to receive. Raises ConfigError where another server has the work directory."""
        try:
            self._socket.bind(self._address)
        except OSError as taken:
            raise ConfigError(
                f"another agent server works in AGENT_SERVER_WORK_DIR={self._work_dir};"
                " stop it or choose another folder"
            ) from taken

    def wait(self, timeout_s: float) -> None:
        """Return at a notification, or when the time is up. Takes all notifications that have arrived."""
        self._socket.settimeout(timeout_s)
        with suppress(TimeoutError, BlockingIOError):
            self._socket.recv(16)
            time.sleep(COALESCE_S)
            self._socket.setblocking(False)
            while self._socket.recv(16):
                pass

    def close(self) -> None:
        """Free the address."""
        self._socket.close()
