"""A fake OpenAI-compatible endpoint: one API key, a scripted model, faults on request.

Invariant: a reply depends on the conversation and on `fault`, never on chance or on the session.
"""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.scripted_model import SUBMIT, completion

KEY = "sk-real-secret"


@dataclass
class Fault:
    """A faulty reply. `hang_s`: seconds before it is sent; `drop`: the connection is closed instead."""

    status: int = 500
    body: bytes = b'{"error": {"message": "it broke", "type": "server_error", "code": null}}'
    headers: dict[str, str] = field(default_factory=dict)
    hang_s: float = 0.0
    drop: bool = False


@dataclass
class FakeEndpoint:
    """A model with scripted conversations.

    `scripts[text]`: first commands of the conversations about a task whose statement holds `text`, in the order they
    begin; the last one repeats. Every conversation then submits. `fault(text, turn)` is called before each reply; a
    conversation's first turn is 0. `begun`: conversations by text; `gone`: callers that left during a hang.
    """

    scripts: dict[str, list[str]] = field(default_factory=dict)
    fault: Callable[[str, int], Fault | None] = lambda text, turn: None
    url: str = ""
    requests: list[dict] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    begun: dict[str, int] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)
    gone: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reply(self, body: dict) -> dict | Fault:
        messages, tools = json.dumps(body["messages"]), bool(body.get("tools"))
        text = next((text for text in self.scripts if json.dumps(text)[1:-1] in messages), "")
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        if fault := self.fault(text, turn):
            return fault
        with self.lock:
            self.requests.append(body)
            if not text:
                return completion("text:OK", tools=False, number=1)  # the probe
            if turn:
                return completion(SUBMIT, tools=tools, number=turn)
            number = self.begun[text] = self.begun.get(text, 0) + 1
            script = self.scripts[text]
            return completion(script[min(number, len(script)) - 1], tools=tools, number=0)


@contextmanager
def serving_endpoint(certificate: str = "") -> Iterator[FakeEndpoint]:
    """`certificate`: a PEM file with its key, for TLS as localhost."""
    endpoint = FakeEndpoint()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            endpoint.keys.add(self.headers.get("Authorization", ""))
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reply = endpoint.reply(body)
            if isinstance(reply, Fault) and (reply.drop or reply.hang_s and self.caller_leaves(reply.hang_s)):
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if isinstance(reply, Fault):
                status, data, extra = reply.status, reply.body, reply.headers
            else:
                status, data, extra = 200, json.dumps(reply).encode(), {}
            headers = {"Content-Type": "application/json", "Content-Length": str(len(data))} | extra
            endpoint.statuses.append(status)
            try:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                self.close_connection = True

        def caller_leaves(self, seconds: float) -> bool:
            """True if the caller closes its connection within so many seconds."""
            self.connection.settimeout(seconds)
            try:
                left = not self.connection.recv(1, socket.MSG_PEEK)
                endpoint.gone += left
                return left
            except TimeoutError:
                self.connection.settimeout(None)
                return False

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}"
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        endpoint.url = f"https://localhost:{server.server_address[1]}"
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
