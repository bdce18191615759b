"""HTTP requests to a server on a Unix socket, one connection each.

Invariant: no proxy, no redirect, no retry.
"""

import http.client
import json
import socket
from pathlib import Path
from typing import NamedTuple


class Response(NamedTuple):
    """Status and body of a response."""

    status: int
    body: bytes


def request(path: Path, method: str, target: str, *, timeout_s: float, content: object = None) -> Response:
    """Send one request, with `content` as JSON unless it is None. `timeout_s` bounds each wait for the server.

    Raises OSError or http.client.HTTPException without a response.
    """
    connection = _Connection(path, timeout_s)
    try:
        body = None if content is None else json.dumps(content)
        connection.request(method, target, body, {} if body is None else {"Content-Type": "application/json"})
        response = connection.getresponse()
        return Response(response.status, response.read())
    finally:
        connection.close()


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float):
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
