"""A threaded HTTP server on the standard library, for the model APIs that sessions call.

Invariant: a caller that closes its connection is no error; its response is dropped.
"""

import json
import select
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SHUTDOWN_POLL_S = 0.05


class JsonHandler(BaseHTTPRequestHandler):
    """Base of request handlers that respond with JSON. Subclasses define `do_GET`, `do_POST` and so on."""

    protocol_version = "HTTP/1.1"

    def send_json(self, status: int, content: Any) -> None:
        self.send_body(status, "application/json", json.dumps(content).encode())

    def send_body(self, status: int, content_type: str, body: bytes) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True  # the caller is gone

    def client_disconnected(self) -> bool:
        """True if the caller has closed the connection. Does not block."""
        poll = select.poll()  # select() takes no descriptor above 1023
        try:
            poll.register(self.connection, select.POLLIN)
            return bool(poll.poll(0)) and not self.connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # else: a caller that was killed in the middle of a request
            super().handle_error(request, client_address)


@contextmanager
def serving(handler: type[JsonHandler], host: str, port: int = 0) -> Iterator[str]:
    """Serve `handler` on `host` and `port` (0: any free one) in a thread; yields the URL. Raises OSError."""
    server = _Server((host, port), handler)
    threading.Thread(target=server.serve_forever, args=(SHUTDOWN_POLL_S,), name="http server", daemon=True).start()
    try:
        yield f"http://{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
