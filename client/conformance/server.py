"""The agent server under test, with the calls that the conformance checks make.

Invariant: no call is retried and no response is altered. A check leaves no session behind, so a server that runs one
session at a time can be tested.
"""

import functools
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import requests

from client.api import session_path
from client.conformance.model import COMPLETIONS, Model, ModelSession
from client.http_session import http_session
from client.wire import Status

POLL_S = 0.05


class CheckFailed(Exception):
    """The server breaks the rule; the message says how."""


class Inconclusive(Exception):
    """The server's state did not allow the check; the message says why."""


class SessionUnderTest:
    """One session of the server: its id at the server, the body that created it, and its agent's model calls."""

    def __init__(self, session_id: str, body: dict[str, Any], model: ModelSession):
        self.id, self.body, self.model = session_id, body, model
        self.path = session_path(session_id)


class Server:
    """One agent server.

    `session_timeout_s`: how long a session may take to call the model, and to end. `watch_s`: how long it is
    watched for things that must not happen.
    """

    def __init__(
        self, url: str, model: Model, *, token: str = "", session_timeout_s: float = 120.0, watch_s: float = 2.0
    ):
        self.url, self.token = url.rstrip("/"), token
        self.session_timeout_s, self.watch_s = session_timeout_s, watch_s
        self._model = model
        self._http = http_session(self.url)
        self._created: set[str] = set()

    def call(
        self, method: str, path: str, *, token: str | None = None, timeout_s: float = 30.0, **options: Any
    ) -> requests.Response:
        """One HTTP call; any status is a result. Raises requests.RequestException if there is no response."""
        token = self.token if token is None else token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return self._http.request(method, self.url + path, headers=headers, timeout=timeout_s, **options)

    def body(self, *, held: bool = False, **fields: Any) -> dict[str, Any]:
        """A valid request with new names. `held`: its model calls wait until the session is released."""
        name = f"conformance-{uuid.uuid4().hex}"
        base_url = self._model.add_session(name, released=not held).base_url
        names = {"session_id": name, "group_id": f"{name}-group", "api_key": f"{name}-key"}
        return names | {"mode": "train", "base_url": base_url} | fields

    def post(self, body: dict[str, Any]) -> requests.Response:
        response = self.call("POST", "/sessions", json=body)
        if response.ok and isinstance(session_id := read_json(response).get("session_id"), str):
            self._created.add(session_id)
        return response

    def start(self, *, held: bool = False, **fields: Any) -> SessionUnderTest:
        """A session that the server has accepted. Raises CheckFailed."""
        body = self.body(held=held, **fields)
        response = self.post(body)
        if not response.ok or not isinstance(session_id := read_json(response).get("session_id"), str):
            raise CheckFailed(f"no session could be created: POST /sessions answered {describe(response)}")
        return SessionUnderTest(session_id, body, self._model.get_session(body["session_id"]))

    def start_running_session(self) -> SessionUnderTest:
        """A session whose agent waits for a response of the model. Raises CheckFailed."""
        session = self.start(held=True)
        deadline = time.monotonic() + self.session_timeout_s
        while not session.model.calls:
            if time.monotonic() > deadline:
                url = f"{session.model.base_url}{COMPLETIONS}"
                raise CheckFailed(f"the agent did not call {url} within {self.session_timeout_s:g} s; can it reach it?")
            if is_terminal(view := self.get_state(session)):
                raise CheckFailed(f"the session ended before its agent called the model: {view}")
            time.sleep(POLL_S)
        return session

    def get_state(self, session: SessionUnderTest) -> dict[str, Any]:
        """The session's present state by GET. Raises CheckFailed."""
        response = self.call("GET", session.path)
        if response.status_code != 200:
            raise CheckFailed(f"GET /sessions/ID answered {describe(response)}")
        return read_json(response)

    def wait_ended(self, session: SessionUnderTest) -> dict[str, Any]:
        """The session's terminal state, by polling. Raises CheckFailed."""
        deadline = time.monotonic() + self.session_timeout_s
        while not is_terminal(view := self.get_state(session)):
            if time.monotonic() > deadline:
                raise CheckFailed(
                    f"the session did not end within {self.session_timeout_s:g} s; it is {view.get('status')}"
                )
            time.sleep(POLL_S)
        return view

    def cancel_and_wait(self, session: SessionUnderTest) -> dict[str, Any]:
        """The session's terminal state after a cancel. Raises CheckFailed."""
        self.cancel(session)
        return self.wait_ended(session)

    def cancel(self, session: SessionUnderTest) -> requests.Response:
        return self.call("POST", f"{session.path}/cancel")

    def clean_up(self) -> None:
        """Cancel the sessions created since the last call. A server that cannot cancel fails a check of its own."""
        while self._created:
            with suppress(requests.RequestException):
                self.call("POST", f"{session_path(self._created.pop())}/cancel", timeout_s=5.0)

    @functools.cached_property
    def end_without_model(self) -> dict[str, Any]:
        """The terminal state of a session whose model cannot be reached."""
        return self.wait_ended(self.start(base_url="http://127.0.0.1:9"))


Check = Callable[[Server], None]


def read_json(response: requests.Response) -> dict[str, Any]:
    """The response's JSON object; an empty one if it has none."""
    try:
        content = response.json()
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def describe(response: requests.Response) -> str:
    return f"{response.status_code} {' '.join(response.text.split())[:200]}"


def is_terminal(view: dict[str, Any]) -> bool:
    return view.get("status") in {status.value for status in Status if status.terminal}


def expect(holds: bool, observed: str) -> None:
    """Raise CheckFailed with the observation unless the condition holds."""
    if not holds:
        raise CheckFailed(observed)
