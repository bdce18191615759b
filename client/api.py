"""AgentServerClient: the contract for Python callers, one method per call.

Invariant: a lost connection is retried until the outage limit, never longer; a retry never runs a session twice.
"""

import socket
import time
from typing import Any
from urllib.parse import quote

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
from client.http_session import http_session
from client.wire import SessionRequest, SessionView

CONNECT_TIMEOUT_S = 5.0
OUTAGE_S = 120.0  # longest outage of the server that is waited out
MAX_WAIT_S = 3600.0  # `wait` of a long poll
MAX_PAUSE_S = 5.0  # between two tries, and between two polls of a server that holds no long polls
MAX_RETRY_AFTER_S = 60.0
REQUEST_ERRORS = {400: InvalidRequest, 401: Unauthorized, 404: NotFound, 409: Conflict}


class AgentServerClient:
    """Client of one agent server.

    `outage_s`: the longest outage before ServerUnreachable. `busy_s`: how long it may respond 429 before ServerBusy.
    Raises ConfigError for a wrong AGENT_SERVER_PROXIES.
    """

    def __init__(self, url: str, *, token: str = "", outage_s: float = OUTAGE_S, busy_s: float = 3600.0):
        self.url = url.rstrip("/")
        self.outage_s = outage_s
        self.busy_s = busy_s
        self._http = http_session(self.url)
        for scheme in ("http://", "https://"):
            self._http.mount(scheme, _KeepAlive())
        if token:
            self._http.headers["Authorization"] = f"Bearer {token}"

    def create(self, request: SessionRequest) -> str:
        """Queue a session; returns the server's session id, the same one for a repeated request.

        Raises InvalidRequest, Unauthorized, ServerBusy.
        """
        return self._call("POST", "/sessions", json=request.model_dump(exclude_none=True))["session_id"]

    def tasks(self) -> dict[str, list[str]]:
        """Row ids by mode. Raises NotFound at a server without that call."""
        return self._call("GET", "/tasks")

    def get(self, session_id: str, *, wait_s: float = 0.0) -> SessionView:
        """The session's state, as soon as it is terminal or after `wait_s`. Raises NotFound."""
        query = {"wait": f"{wait_s:g}"} if wait_s > 0 else {}
        return SessionView.model_validate(
            self._call("GET", session_path(session_id), params=query, read_timeout_s=wait_s + 15.0)
        )

    def wait(self, session_id: str, *, timeout_s: float) -> SessionView:
        """The terminal session, by long polls or, at a server that holds none, by polling.

        Raises TimeoutError after `timeout_s`; the session keeps running.
        """
        deadline = time.monotonic() + timeout_s
        pause_s = 1.0
        while (left_s := deadline - time.monotonic()) > 0:
            asked_at = time.monotonic()
            view = self.get(session_id, wait_s=min(left_s, MAX_WAIT_S))
            if view.status.terminal:
                return view
            held_s, left_s = time.monotonic() - asked_at, deadline - time.monotonic()
            if held_s < pause_s and left_s > 0:  # the server does not hold long polls, or not for long
                time.sleep(min(pause_s, left_s))
                pause_s = min(pause_s + 1.0, MAX_PAUSE_S)
        raise TimeoutError(f"session {session_id} did not end within {timeout_s:g} s; cancel it or wait longer")

    def cancel(self, session_id: str) -> None:
        """Cancel the session in any state. Repeatable."""
        self._call("POST", f"{session_path(session_id)}/cancel")

    def _call(self, method: str, path: str, *, read_timeout_s: float = 30.0, **arguments: Any) -> dict[str, Any]:
        down_since = busy_since = None
        pause_s = 1.0
        while True:
            retry_after = ""
            try:
                response = self._http.request(
                    method, self.url + path, timeout=(CONNECT_TIMEOUT_S, read_timeout_s), **arguments
                )
                if response.status_code < 500 and response.status_code != 429:
                    return _content(response)
                fault, retry_after = f"HTTP {response.status_code}", response.headers.get("Retry-After", "")
                busy = response.status_code == 429
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
                fault, busy = type(error).__name__, False
            now = time.monotonic()
            if busy:  # a busy server is not an outage
                down_since, busy_since = None, busy_since or now
                left_s = busy_since + self.busy_s - now
            else:
                down_since, busy_since = down_since or now, None
                left_s = down_since + self.outage_s - now
            if left_s <= 0:
                raise self._give_up(f"{method} {self.url}{path}", fault, busy)
            asked_s = min(float(retry_after), MAX_RETRY_AFTER_S) if retry_after.isdigit() else 0.0
            time.sleep(min(asked_s or pause_s, left_s))
            pause_s = min(pause_s + 1.0, MAX_PAUSE_S)

    def _give_up(self, call: str, fault: str, busy: bool) -> ServerError:
        if busy:
            return ServerBusy(f"{call}: busy for {self.busy_s:g} s; ask for fewer sessions at once or raise its limits")
        problem = f"{call}: no usable response for {self.outage_s:g} s (last: {fault})"
        return ServerUnreachable(f"{problem}; is the agent server up?")


class _KeepAlive(HTTPAdapter):
    """Connections with TCP keep-alive every 15 s, so that a long poll at a dead machine ends after 75 s."""

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        tcp = {socket.TCP_NODELAY: 1, socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4}
        options["socket_options"] = [
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            *((socket.IPPROTO_TCP, name, value) for name, value in tcp.items()),
        ]
        super().init_poolmanager(*arguments, **options)


def session_path(session_id: str) -> str:
    """The path of a session's routes. Any id may be part of it."""
    return f"/sessions/{quote(session_id, safe='')}"


def _content(response: requests.Response) -> dict[str, Any]:
    """The JSON object of a success. Raises the StackError of any other response."""
    if response.ok:
        return _json_object(response) if response.content else {}
    try:
        error = response.json()["error"]
        message, field = (error, None) if isinstance(error, str) else (error["message"], error.get("field"))
    except (ValueError, KeyError, TypeError):
        message, field = response.text[:300], None
    raise REQUEST_ERRORS.get(response.status_code, StackError)(message, field=field)


def _json_object(response: requests.Response) -> dict[str, Any]:
    try:
        content = response.json()
    except ValueError:
        content = None
    if not isinstance(content, dict):
        problem = f"{response.url} answered HTTP {response.status_code} with no JSON object: {response.text[:300]!r}"
        raise ServerError(f"{problem}; is this an agent server?")
    return content
