"""The session's model API as a program inside the sandbox sees it: one address on 127.0.0.1, in a sandbox without a network.

The listening socket is made inside the sandbox's network namespace and handed out; threads of the worker answer on it.
Invariant: only chat completions are forwarded; the key is put on outside and never enters the sandbox.
"""

import fcntl
import json
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from agent_server.agents.upstream import COMPLETIONS, EVENT_STREAM, Upstream
from agent_server.sandboxes.namespaces import NET, run_in_namespaces
from client.errors import ModelUnreachable

MODELS = "/v1/models"
MODEL_LIST = {"object": "list", "data": [{"id": "policy", "object": "model", "created": 0, "owned_by": "session"}]}
BODY_LIMIT_BYTES = 64 * 2**20
CONNECTIONS = 64  # at once; each costs the worker a thread
IDLE_S = 60.0  # a connection on which no request comes
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


class Relay(ThreadingHTTPServer):
    """Serves `upstream` from entering to leaving its `with`; leaving cuts the calls in flight."""

    daemon_threads = True

    def __init__(self, pid: int, upstream: Upstream):
        """`pid`: a process of the sandbox. Raises PermissionError where its namespace cannot be entered."""
        super().__init__(("127.0.0.1", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = _listen_inside(pid)
        self.port: int = self.socket.getsockname()[1]
        self.upstream = upstream
        self._free = threading.BoundedSemaphore(CONNECTIONS)

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.05,), name="relay", daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self.upstream.cut()
        self.shutdown()
        self.server_close()

    def process_request(self, request, client_address) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request, client_address) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request, client_address) -> None:
        """A client that went away in the middle, or a stream that broke off: the connection ends, and the upstream knows why."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    server: Relay

    def do_GET(self) -> None:
        if self.path == MODELS:
            self._send(200, json.dumps(MODEL_LIST).encode())
        else:
            self._not_found()

    def do_POST(self) -> None:
        size = self.headers.get("Content-Length", "")
        if self.path != COMPLETIONS:
            self._not_found()
        elif not size.isdecimal() or int(size) > BODY_LIMIT_BYTES:
            self._refuse(413, f"a body needs a Content-Length of at most {BODY_LIMIT_BYTES}")
        else:
            self._forward(self.rfile.read(int(size)))

    def _forward(self, body: bytes) -> None:
        try:
            with self.server.upstream.call(body) as (status, content_type, pieces):
                if content_type.startswith(EVENT_STREAM):
                    return self._stream(status, pieces)
                data = b"".join(pieces)
        except ModelUnreachable as lost:
            return self._refuse(502, str(lost))
        self._send(status, data)

    def _not_found(self) -> None:
        self._refuse(404, f"here are only POST {COMPLETIONS} and GET {MODELS}")

    do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = _not_found

    def _refuse(self, status: int, message: str) -> None:
        self.close_connection = True  # a body may stand unread
        self._send(status, json.dumps({"error": {"message": message, "type": "relay_error", "code": None}}).encode())

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, status: int, pieces: Iterator[bytes]) -> None:
        """A stream that breaks off at the model's side has no end mark here either."""
        self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", EVENT_STREAM)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for piece in pieces:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        except ModelUnreachable as lost:
            raise ConnectionAbortedError(str(lost)) from lost
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_) -> None:
        """Nothing: the gateway records every call."""


def _listen_inside(pid: int) -> socket.socket:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        run_in_namespaces(pid, NET, lambda: _send_listener(theirs))
        _, (descriptor,), _, _ = socket.recv_fds(ours, 1, 1)
    return socket.socket(fileno=descriptor)


def _send_listener(channel: socket.socket) -> None:
    """Runs inside: the socket belongs to the namespace that it was made in, whoever holds it."""
    listener = socket.socket()
    request = fcntl.ioctl(listener, SIOCGIFFLAGS, struct.pack("16sh14x", b"lo", 0))
    name, flags = struct.unpack("16sh14x", request)
    if not flags & IFF_UP:
        fcntl.ioctl(listener, SIOCSIFFLAGS, struct.pack("16sh14x", name, flags | IFF_UP))
    listener.bind(("127.0.0.1", 0))
    listener.listen(CONNECTIONS)
    socket.send_fds(channel, [b"."], [listener.fileno()])
