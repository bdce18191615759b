"""AgentServerClient: the contract for Python callers, one method a call.

Invariant: a lost connection is retried until the outage limit, never longer; a retry never runs a session twice.
"""

import socket
import time
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from client.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    ServerBusy,
    ServerError,
    ServerUnreachable,
    StackError,
    Unauthorized,
)
from client.wire import SessionRequest, SessionView

CONNECT_TIMEOUT_S = 5.0
LONGEST_WAIT_S = 3600.0  # what a server is asked to hold one answer for
LONGEST_REST_S = 5.0  # between two tries, and between two questions to a server that holds no answers
LONGEST_RETRY_AFTER_S = 60.0
REQUEST_ERRORS = {400: InvalidRequest, 401: Unauthorized, 404: NotFound, 409: Conflict}


class AgentServerClient:
    """Talks to one agent server.

    `outage_s`: how long it may stay silent before ServerUnreachable. `busy_s`: how long it may answer 429 before ServerBusy.
    """

    def __init__(self, url: str, *, token: str = "", outage_s: float = 120.0, busy_s: float = 3600.0):
        self.url = url.rstrip("/")
        self.outage_s = outage_s
        self.busy_s = busy_s
        self._http = requests.Session()
        for scheme in ("http://", "https://"):
            self._http.mount(scheme, _KeepAlive())
        if token:
            self._http.headers["Authorization"] = f"Bearer {token}"

    def create(self, request: SessionRequest) -> str:
        """Queue a session (again); returns the server's session id. Raises InvalidRequest, Unauthorized, ServerBusy."""
        return self._call("POST", "/sessions", json=request.model_dump(exclude_none=True))["session_id"]

    def tasks(self) -> dict[str, list[str]]:
        """Row ids by mode. Raises NotFound where a server does not say."""
        return self._call("GET", "/tasks")

    def get(self, session_id: str, *, wait_s: float = 0.0) -> SessionView:
        """The session now, or as soon as it is terminal, at the latest after `wait_s`. Raises NotFound."""
        query = {"wait": f"{wait_s:g}"} if wait_s > 0 else {}
        return SessionView.model_validate(
            self._call("GET", f"/sessions/{session_id}", params=query, read_timeout_s=wait_s + 15.0)
        )

    def wait(self, session_id: str, *, timeout_s: float) -> SessionView:
        """The terminal session, also from a server that does not hold answers. Raises TimeoutError after `timeout_s`; the
        session goes on then."""
        deadline = time.monotonic() + timeout_s
        rest_s = 1.0
        while (left_s := deadline - time.monotonic()) > 0:
            asked_at = time.monotonic()
            view = self.get(session_id, wait_s=min(left_s, LONGEST_WAIT_S))
            if view.status.terminal:
                return view
            held_s, left_s = time.monotonic() - asked_at, deadline - time.monotonic()
            if held_s < rest_s and left_s > 0:  # it does not hold answers, or not for long
                time.sleep(min(rest_s, left_s))
                rest_s = min(rest_s + 1.0, LONGEST_REST_S)
        raise TimeoutError(f"session {session_id} did not end within {timeout_s:g} s; cancel it or wait longer")

    def cancel(self, session_id: str) -> None:
        """Stop the session wherever it is; repeatable."""
        self._call("POST", f"/sessions/{session_id}/cancel")

    def _call(self, method: str, path: str, *, read_timeout_s: float = 30.0, **arguments: Any) -> dict:
        down_since = busy_since = None
        rest_s = 1.0
        while True:
            retry_after = ""
            try:
                answer = self._http.request(
                    method, self.url + path, timeout=(CONNECT_TIMEOUT_S, read_timeout_s), **arguments
                )
                if answer.status_code < 500 and answer.status_code != 429:
                    return _result(answer)
                trouble, retry_after = f"HTTP {answer.status_code}", answer.headers.get("Retry-After", "")
                busy = answer.status_code == 429
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as lost:
                trouble, busy = type(lost).__name__, False
            now = time.monotonic()
            busy_since = (busy_since or now) if busy else None  # a busy server is not an outage
            down_since = None if busy else (down_since or now)
            left_s = (busy_since + self.busy_s if busy_since else down_since + self.outage_s) - now
            if left_s <= 0 and busy:
                raise ServerBusy(
                    f"{method} {self.url}{path}: busy for {self.busy_s:g} s; ask for fewer sessions at once or raise its limits"
                )
            if left_s <= 0:
                raise ServerUnreachable(
                    f"{method} {self.url}{path}: no usable answer for {self.outage_s:g} s (last: {trouble}); is the agent server up?"
                )
            asked_s = min(float(retry_after), LONGEST_RETRY_AFTER_S) if retry_after.isdigit() else 0.0
            time.sleep(min(asked_s or rest_s, left_s))
            rest_s = min(rest_s + 1.0, LONGEST_REST_S)


class _KeepAlive(HTTPAdapter):
    """TCP asks every 15 s whether the peer is still there, so that a held answer of a machine that is gone ends after 75 s."""

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        tcp = {socket.TCP_NODELAY: 1, socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4}
        options["socket_options"] = [
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            *((socket.IPPROTO_TCP, name, value) for name, value in tcp.items()),
        ]
        super().init_poolmanager(*arguments, **options)


def _result(answer: requests.Response) -> dict:
    if answer.ok:
        return _object(answer) if answer.content else {}
    try:
        error = answer.json()["error"]
        message, field = error["message"], error.get("field")
    except (ValueError, KeyError, TypeError):
        message, field = answer.text[:300], None
    raise REQUEST_ERRORS.get(answer.status_code, StackError)(message, field=field)


def _object(answer: requests.Response) -> dict:
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ServerError(
            f"{answer.url} answered HTTP {answer.status_code} with no JSON object: {answer.text[:300]!r}; is this an agent server?"
        )
    return found
