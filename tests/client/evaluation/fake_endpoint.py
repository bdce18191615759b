"""An OpenAI-compatible endpoint as a provider runs it: one key for everybody, a model that plays a task, and faults when told.

Invariant: what it answers depends on the conversation and on `fault`, never on chance or on whose session it is.
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
    """An answer of the provider itself. `hang_s`: after so long, or never; `drop`: the connection ends instead."""

    status: int = 500
    body: bytes = b'{"error": {"message": "it broke", "type": "server_error", "code": null}}'
    headers: dict[str, str] = field(default_factory=dict)
    hang_s: float = 0.0
    drop: bool = False


@dataclass
class PlayedEndpoint:
    """`plays[text]`: first commands of the conversations about a task whose statement holds `text`, in the order they begin (the last one
    repeats); every conversation then submits. `fault(text, turn)` is asked before each answer; turn 0 is a conversation's first."""

    plays: dict[str, list[str]] = field(default_factory=dict)
    fault: Callable[[str, int], Fault | None] = lambda text, turn: None
    url: str = ""
    requests: list[dict] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    begun: dict[str, int] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)
    gone: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, body: dict) -> dict | Fault:
        said = json.dumps(body["messages"])
        text = next((text for text in self.plays if json.dumps(text)[1:-1] in said), "")
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        if fault := self.fault(text, turn):
            return fault
        with self.lock:
            self.requests.append(body)
            if not text:
                return completion("text:OK", tools=False, number=1)  # the probe
            if turn:
                return completion(SUBMIT, tools=bool(body.get("tools")), number=turn)
            number = self.begun[text] = self.begun.get(text, 0) + 1
            return completion(
                self.plays[text][min(number, len(self.plays[text])) - 1], tools=bool(body.get("tools")), number=0
            )


@contextmanager
def serving(certificate: str = "") -> Iterator[PlayedEndpoint]:
    """`certificate`: a PEM file with its key, for TLS as localhost."""
    endpoint = PlayedEndpoint()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            endpoint.keys.add(self.headers.get("Authorization", ""))
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = endpoint.answer(body)
            if isinstance(answer, Fault) and (answer.drop or answer.hang_s and self.caller_leaves(answer.hang_s)):
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            status, data, headers = (
                (answer.status, answer.body, answer.headers)
                if isinstance(answer, Fault)
                else (200, json.dumps(answer).encode(), {})
            )
            endpoint.statuses.append(status)
            try:
                self.send_response(status)
                for name, value in (
                    {"Content-Type": "application/json", "Content-Length": str(len(data))} | headers
                ).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                self.close_connection = True

        def caller_leaves(self, seconds: float) -> bool:
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
