"""AgentServerClient: the contract for Python callers, one method a call.

Invariant: a lost connection is retried until the outage limit, never longer; a retry never runs a session twice.
"""

import time

import requests

from client.errors import Conflict, InvalidRequest, NotFound, ServerUnreachable, StackError, Unauthorized
from client.wire import SessionRequest, SessionView

CONNECT_TIMEOUT_S = 5.0
REQUEST_ERRORS = {400: InvalidRequest, 401: Unauthorized, 404: NotFound, 409: Conflict}


class AgentServerClient:
    """Talks to one agent server. `outage_s`: how long it may stay silent before ServerUnreachable."""

    def __init__(self, url: str, *, token: str = "", outage_s: float = 120.0):
        self.url = url.rstrip("/")
        self.outage_s = outage_s
        self._http = requests.Session()
        if token:
            self._http.headers["Authorization"] = f"Bearer {token}"

    def create(self, request: SessionRequest) -> str:
        """Queue a session (again); returns the server's session id. Raises InvalidRequest, Unauthorized."""
        return self._call("POST", "/sessions", json=request.model_dump(exclude_none=True))["session_id"]

    def get(self, session_id: str, *, wait_s: float = 0.0) -> SessionView:
        """The session now, or as soon as it is terminal, at the latest after `wait_s`. Raises NotFound."""
        answer = self._call("GET", f"/sessions/{session_id}", params={"wait": wait_s}, read_timeout_s=wait_s + 10.0)
        return SessionView.model_validate(answer)

    def wait(self, session_id: str, *, timeout_s: float) -> SessionView:
        """The terminal session. Raises TimeoutError after `timeout_s`; the session goes on then."""
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            view = self.get(session_id, wait_s=min(left_s, 30.0))
            if view.status.terminal:
                return view
        raise TimeoutError(f"session {session_id} did not end within {timeout_s:g} s; cancel it or wait longer")

    def cancel(self, session_id: str) -> None:
        """Stop the session wherever it is; repeatable."""
        self._call("POST", f"/sessions/{session_id}/cancel")

    def _call(self, method: str, path: str, *, read_timeout_s: float = 30.0, **arguments) -> dict:
        deadline = time.monotonic() + self.outage_s
        while True:
            try:
                answer = self._http.request(method, self.url + path, timeout=(CONNECT_TIMEOUT_S, read_timeout_s), **arguments)
                if answer.status_code < 500 and answer.status_code != 429:
                    return _result(answer)
                trouble, pause_s = f"HTTP {answer.status_code}", float(answer.headers.get("Retry-After", 1.0))
            except (requests.ConnectionError, requests.Timeout) as lost:
                trouble, pause_s = type(lost).__name__, 1.0
            if time.monotonic() + pause_s > deadline:
                raise ServerUnreachable(
                    f"{method} {self.url}{path}: no usable answer for {self.outage_s:g} s (last: {trouble}); is the agent server up?"
                )
            time.sleep(pause_s)


def _result(answer: requests.Response) -> dict:
    if answer.ok:
        return answer.json() if answer.content else {}
    try:
        error = answer.json()["error"]
        message, field = error["message"], error.get("field")
    except (ValueError, KeyError, TypeError):
        message, field = answer.text[:300], None
    raise REQUEST_ERRORS.get(answer.status_code, StackError)(message, field=field)
