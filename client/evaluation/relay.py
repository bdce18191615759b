"""The model API that a batch's sessions see: it knows a session by its key, asks the endpoint in its place, and keeps the count.

Invariant: the endpoint's API key never leaves this process; after a fault of the endpoint a session gets no further answer, so
that nothing it does then can be scored.
"""

import json
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from client.errors import ConfigError, InvalidRequest, ModelError, StackError, Unauthorized
from client.evaluation.endpoint import LOOK_S, CallerGone, Endpoint

COMPLETIONS, MODELS = "/v1/chat/completions", "/v1/models"
BODY_LIMIT_BYTES = 64 * 2**20
LEAVE_S = 10.0  # for the agent of a cancelled session to be gone
IDLE_S = 60.0  # a connection on which no request comes


class Talk:
    """What one session said to the model, and what became of it. `lost_s`: seconds its calls waited for rate limits and faults.

    `fault`: what ended it, if the endpoint did. `pending`: the fault that its last call was waiting out.
    """

    def __init__(self, endpoint: Endpoint, on_fault: Callable[[ModelError], None]):
        self.key = secrets.token_urlsafe(24)
        self.calls = self.prompt_tokens = self.completion_tokens = 0
        self.lost_s = 0.0
        self.fault: ModelError | None = None
        self.pending: Exception | None = None
        self.conversation: dict[str, Any] = {}
        self._endpoint, self._on_fault = endpoint, on_fault
        self._lock = threading.Lock()
        self._ended = False
        self._cancel: Callable[[], None] | None = None

    def began(self, cancel: Callable[[], None]) -> None:
        """The session exists now, and `cancel` ends it: at once, if it is not wanted any more."""
        with self._lock:
            self._cancel, cancel_now = cancel, self._ended
        if cancel_now:
            cancel()

    def end(self) -> None:
        """Nobody wants the session any more. Cancels it once."""
        with self._lock:
            cancel, self._ended = None if self._ended else self._cancel, True
        if cancel:
            cancel()

    def complete(self, request: dict[str, Any], gone: Callable[[], bool]) -> tuple[int, dict[str, Any]]:
        """Status and answer for the agent. Raises CallerGone, ModelError."""
        if self.fault:
            raise self.fault
        plain = {name: value for name, value in request.items() if name not in ("stream", "stream_options")}
        try:
            verdict = self._endpoint.complete(plain, gone, self._lost)
        except ModelError as fault:
            with self._lock:
                self.fault = self.fault or fault
            self._on_fault(fault)
            self.end()
            # An agent that is being cancelled is not told an error at the same moment: it ends in its call, not in handling that.
            until = time.monotonic() + LEAVE_S
            while not gone() and time.monotonic() < until:
                time.sleep(LOOK_S)
            raise
        with self._lock:
            self.pending = None
            if verdict.status == 200:
                self._count(plain, verdict.answer)
        return verdict.status, verdict.answer

    def _lost(self, seconds: float, fault: Exception | None) -> None:
        with self._lock:
            self.lost_s += seconds
            self.pending = fault or self.pending

    def _count(self, request: dict[str, Any], answer: dict[str, Any]) -> None:
        usage = answer.get("usage") or {}
        self.calls += 1
        self.prompt_tokens += usage.get("prompt_tokens") or 0
        self.completion_tokens += usage.get("completion_tokens") or 0
        message = {name: value for name, value in answer["choices"][0]["message"].items() if value is not None}
        self.conversation = {"messages": [*request["messages"], message]} | (
            {"tools": request["tools"]} if request.get("tools") else {}
        )


class Relay:
    """`url` is every session's base_url; the key tells whose call it is."""

    def __init__(self, url: str, endpoint: Endpoint):
        self.url, self.endpoint = url, endpoint
        self._talks: dict[str, Talk] = {}

    @contextmanager
    def talk(self, on_fault: Callable[[ModelError], None]) -> Iterator[Talk]:
        """A session's talk; its key is unknown afterwards."""
        talk = Talk(self.endpoint, on_fault)
        self._talks[talk.key] = talk
        try:
            yield talk
        finally:
            del self._talks[talk.key]

    def end_all(self) -> None:
        """Cancel every session there is, all at once."""
        threads = [threading.Thread(target=talk.end) for talk in list(self._talks.values())]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def of(self, authorization: str) -> Talk:
        """Raises Unauthorized."""
        talk = self._talks.get(authorization.removeprefix("Bearer ").strip())
        if not talk:
            raise Unauthorized("no session of this batch has that key")
        return talk


@contextmanager
def serving(host: str, port: int, endpoint: Endpoint) -> Iterator[Relay]:
    """A relay on `host` and `port` (0: a free one), an address of this machine that the agent server can reach. Raises ConfigError."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = IDLE_S

        def do_GET(self) -> None:
            listed = {
                "object": "list",
                "data": [{"id": endpoint.model, "object": "model", "created": 0, "owned_by": "endpoint"}],
            }
            self._send(200, listed) if self.path == MODELS else self._send(
                404, _told("not_found", f"here are POST {COMPLETIONS} and GET {MODELS}")
            )

        def do_POST(self) -> None:
            try:
                request = self._request()
                talk = relay.of(self.headers.get("Authorization", ""))
                status, answer = talk.complete(request, lambda: _closed(self.connection))
            except CallerGone:
                self.close_connection = True
            except StackError as refused:
                self._send(refused.http_status, _told(refused.code, str(refused)))
            else:
                self._stream(request, answer) if request.get("stream") and status == 200 else self._send(status, answer)

        def _request(self) -> dict[str, Any]:
            size = self.headers.get("Content-Length", "")
            if self.path != COMPLETIONS or not size.isdecimal() or int(size) > BODY_LIMIT_BYTES:
                self.close_connection = True  # the body stands unread
                raise InvalidRequest(
                    f"it must be POST {COMPLETIONS} with a Content-Length of at most {BODY_LIMIT_BYTES}"
                )
            try:
                request = json.loads(self.rfile.read(int(size)))
            except ValueError:
                request = None
            if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
                raise InvalidRequest("the body must be a JSON object with messages")
            return request

        def _stream(self, request: dict[str, Any], answer: dict[str, Any]) -> None:
            events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in stream_chunks(request, answer))
            self._write(200, "text/event-stream", f"{events}data: [DONE]\n\n".encode())

        def _send(self, status: int, answer: dict[str, Any]) -> None:
            self._write(status, "application/json", json.dumps(answer).encode())

        def _write(self, status: int, content_type: str, data: bytes) -> None:
            try:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                self.close_connection = True  # the caller has gone

        def log_message(self, *_: Any) -> None:
            pass

    try:
        server = _Server((host, port), Handler)
    except OSError as refused:
        raise ConfigError(
            f"--relay-host {host} --relay-port {port}: {refused}; give an address of this machine and a free port"
        ) from None
    relay = Relay(f"http://{host}:{server.server_address[1]}", endpoint)
    threading.Thread(target=server.serve_forever, args=(0.05,), name="relay", daemon=True).start()
    try:
        yield relay
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A worker that was ended in the middle of a call."""


def stream_chunks(request: dict[str, Any], answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of an answer for a caller that wants a stream: the endpoint is asked for the whole, which can be asked again."""
    head = {name: value for name, value in answer.items() if name not in ("choices", "usage")} | {
        "object": "chat.completion.chunk"
    }
    chunks = []
    for choice in answer["choices"]:
        delta = dict(choice["message"])
        if delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": number} | call for number, call in enumerate(delta["tool_calls"])]
        for part in (
            {"delta": delta, "finish_reason": None},
            {"delta": {}, "finish_reason": choice.get("finish_reason")},
        ):
            chunks.append(head | {"choices": [{"index": choice.get("index", 0)} | part]})
    if (request.get("stream_options") or {}).get("include_usage"):
        chunks.append(head | {"choices": [], "usage": answer.get("usage")})
    return chunks


def _told(code: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "relay_error", "code": code}}


def _closed(connection: socket.socket) -> bool:
    look = select.poll()  # select() knows no descriptor beyond 1023
    try:
        look.register(connection, select.POLLIN)
        return bool(look.poll(0)) and not connection.recv(1, socket.MSG_PEEK)
    except (OSError, ValueError):
        return True
