"""The model API of an evaluation's sessions: relays their calls to the endpoint and counts calls, tokens and delays.

Invariant: the endpoint's API key never leaves this process. After a fault of the endpoint a session gets no further
completion, so that no later action of its agent can be scored.
"""

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from client.errors import ConfigError, InvalidRequest, ModelError, StackError, Unauthorized
from client.evaluation.endpoint import POLL_S, ClientDisconnected, Endpoint
from client.http_server import JsonHandler, serving

COMPLETIONS, MODELS = "/v1/chat/completions", "/v1/models"
BODY_LIMIT_BYTES = 64 * 2**20
AGENT_EXIT_S = 10.0  # for the agent of a cancelled session to exit
IDLE_S = 60.0  # before a connection without requests is closed


class ModelSession:
    """The model calls of one session: its key, conversation, counts and fault.

    `delay_s`: seconds that its calls spent in rate limits and faults. `fault`: the endpoint's error that ended it, or
    None. `pending_fault`: the error that its latest call is waiting out.
    """

    def __init__(self, endpoint: Endpoint, on_fault: Callable[[ModelError], None]):
        self.key = secrets.token_urlsafe(24)
        self.calls = self.prompt_tokens = self.completion_tokens = 0
        self.delay_s = 0.0
        self.fault: ModelError | None = None
        self.pending_fault: Exception | None = None
        self.conversation: dict[str, Any] = {}
        self._endpoint, self._on_fault = endpoint, on_fault
        self._lock = threading.Lock()
        self._ended = False
        self._cancel: Callable[[], None] | None = None

    def attach(self, cancel: Callable[[], None]) -> None:
        """Set the function that cancels the session at the agent server; called at once if `end` was called before."""
        with self._lock:
            self._cancel, cancel_now = cancel, self._ended
        if cancel_now:
            cancel()

    def end(self) -> None:
        """Cancel the session. Repeatable."""
        with self._lock:
            cancel, self._ended = None if self._ended else self._cancel, True
        if cancel:
            cancel()

    def complete(self, request: dict[str, Any], client_disconnected: Callable[[], bool]) -> tuple[int, dict[str, Any]]:
        """Status and JSON body for the agent. Raises ClientDisconnected, ModelError."""
        if self.fault:
            raise self.fault
        plain = {name: value for name, value in request.items() if name not in ("stream", "stream_options")}
        try:
            decision = self._endpoint.complete(plain, client_disconnected, self._add_delay)
        except ModelError as fault:
            with self._lock:
                self.fault = self.fault or fault
            self._on_fault(fault)
            self.end()
            # The agent is being cancelled: it should exit within this call, not while it handles an error response.
            deadline = time.monotonic() + AGENT_EXIT_S
            while not client_disconnected() and time.monotonic() < deadline:
                time.sleep(POLL_S)
            raise
        answer = decision.answer or {}
        with self._lock:
            self.pending_fault = None
            if decision.status == 200:
                self._count(plain, answer)
        return decision.status, answer

    def _add_delay(self, seconds: float, fault: Exception | None) -> None:
        with self._lock:
            self.delay_s += seconds
            self.pending_fault = fault or self.pending_fault

    def _count(self, request: dict[str, Any], answer: dict[str, Any]) -> None:
        usage = answer.get("usage") or {}
        self.calls += 1
        self.prompt_tokens += usage.get("prompt_tokens") or 0
        self.completion_tokens += usage.get("completion_tokens") or 0
        message = {name: value for name, value in answer["choices"][0]["message"].items() if value is not None}
        self.conversation = {"messages": [*request["messages"], message]}
        if request.get("tools"):
            self.conversation["tools"] = request["tools"]


class Relay:
    """The model sessions by key. `url` is the base_url of all of them; the key identifies the session of a call."""

    def __init__(self, endpoint: Endpoint):
        self.url, self.endpoint = "", endpoint
        self._sessions: dict[str, ModelSession] = {}

    @contextmanager
    def open_session(self, on_fault: Callable[[ModelError], None]) -> Iterator[ModelSession]:
        """A new session, whose key is valid within the `with`."""
        session = ModelSession(self.endpoint, on_fault)
        self._sessions[session.key] = session
        try:
            yield session
        finally:
            del self._sessions[session.key]

    def end_all(self) -> None:
        """Cancel all sessions in parallel."""
        threads = [threading.Thread(target=session.end) for session in list(self._sessions.values())]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def get_session(self, authorization: str) -> ModelSession:
        """The session of a bearer token. Raises Unauthorized."""
        session = self._sessions.get(authorization.removeprefix("Bearer ").strip())
        if not session:
            raise Unauthorized("the API key must be that of a session of this evaluation")
        return session


@contextmanager
def serving_relay(host: str, port: int, endpoint: Endpoint) -> Iterator[Relay]:
    """A relay on `host`, an address that the agent server can reach, and `port` (0: any). Raises ConfigError."""
    relay = Relay(endpoint)
    model = {"id": endpoint.model, "object": "model", "created": 0, "owned_by": "endpoint"}

    class Handler(JsonHandler):
        timeout = IDLE_S

        def do_GET(self) -> None:
            if self.path == MODELS:
                self.send_json(200, {"object": "list", "data": [model]})
            else:
                self.send_json(404, _error("not_found", f"use POST {COMPLETIONS} or GET {MODELS}"))

        def do_POST(self) -> None:
            try:
                request = self._read_request()
                session = relay.get_session(self.headers.get("Authorization", ""))
                status, answer = session.complete(request, self.client_disconnected)
            except ClientDisconnected:
                self.close_connection = True
            except StackError as error:
                self.send_json(error.http_status, _error(error.code, str(error)))
            else:
                if request.get("stream") and status == 200:
                    self._send_stream(request, answer)
                else:
                    self.send_json(status, answer)

        def _read_request(self) -> dict[str, Any]:
            size = self.headers.get("Content-Length", "")
            if self.path != COMPLETIONS or not size.isdecimal() or int(size) > BODY_LIMIT_BYTES:
                self.close_connection = True  # the body stays unread
                raise InvalidRequest(
                    f"the request must be POST {COMPLETIONS} with a Content-Length of at most {BODY_LIMIT_BYTES}"
                )
            try:
                request = json.loads(self.rfile.read(int(size)))
            except (ValueError, RecursionError):
                request = None
            if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
                raise InvalidRequest("the body must be a JSON object with messages")
            return request

        def _send_stream(self, request: dict[str, Any], answer: dict[str, Any]) -> None:
            events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in stream_chunks(request, answer))
            self.send_body(200, "text/event-stream", f"{events}data: [DONE]\n\n".encode())

    with ExitStack() as stack:
        try:
            relay.url = stack.enter_context(serving(Handler, host, port))
        except OSError as error:
            remedy = "give an address of this machine and a free port"
            raise ConfigError(f"--relay-host {host} --relay-port {port}: {error}; {remedy}") from None
        yield relay


def stream_chunks(request: dict[str, Any], answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The answer as the chunks of a stream. The endpoint gives it whole, so that a failed call can be sent again."""
    head = {name: value for name, value in answer.items() if name not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk"
    chunks = []
    for choice in answer["choices"]:
        index, delta = choice.get("index", 0), dict(choice["message"])
        if delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": number} | call for number, call in enumerate(delta["tool_calls"])]
        end = {"delta": {}, "finish_reason": choice.get("finish_reason")}
        for part in ({"delta": delta, "finish_reason": None}, end):
            chunks.append(head | {"choices": [{"index": index} | part]})
    if (request.get("stream_options") or {}).get("include_usage"):
        chunks.append(head | {"choices": [], "usage": answer.get("usage")})
    return chunks


def _error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "relay_error", "code": code}}
