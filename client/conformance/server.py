"""The server under test, as the conformance checks ask it: sessions of fresh names, their states, their ends.

Invariant: no call is repeated and no answer is smoothed over; a check leaves no session behind, so a server that runs one at a time will do.
"""

import functools
import time
import uuid
from typing import Any

import requests

from client.conformance.model import COMPLETIONS, Model, Talk
from client.wire import Status

POLL_S = 0.05


class Fails(Exception):
    """The promise is broken; the message says how."""


class Untested(Exception):
    """The server gave no occasion to see; the message says why."""


class Session:
    """One session of the server: its id there, the body it was asked for with, and what its agent says to the model."""

    def __init__(self, session_id: str, body: dict[str, Any], talk: Talk):
        self.id, self.body, self.talk = session_id, body, talk


class Server:
    """One agent server.

    `patience_s`: how long a session may take to call the model, and to end. `look_s`: how long it is watched for what must not happen.
    """

    def __init__(self, url: str, model: Model, *, token: str = "", patience_s: float = 120.0, look_s: float = 2.0):
        self.url, self.model, self.token, self.patience_s, self.look_s = (
            url.rstrip("/"),
            model,
            token,
            patience_s,
            look_s,
        )
        self._made: set[str] = set()

    def call(
        self, method: str, path: str, *, token: str | None = None, timeout_s: float = 30.0, **options: Any
    ) -> requests.Response:
        """Any status is an answer. Raises requests' errors for none."""
        token = self.token if token is None else token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return requests.request(method, self.url + path, headers=headers, timeout=timeout_s, **options)

    def body(self, *, held: bool = False, **fields: Any) -> dict[str, Any]:
        """A good request of new names. `held`: its model calls are not answered before `talk.released` is set."""
        name = f"conformance-{uuid.uuid4().hex}"
        talk = self.model.talk(name, released=not held)
        return {
            "session_id": name,
            "group_id": name,
            "mode": "train",
            "base_url": talk.base_url,
            "api_key": name,
        } | fields

    def post(self, body: dict[str, Any]) -> requests.Response:
        answer = self.call("POST", "/sessions", json=body)
        if answer.ok and isinstance(session_id := json_of(answer).get("session_id"), str):
            self._made.add(session_id)
        return answer

    def start(self, *, held: bool = False, **fields: Any) -> Session:
        """A session that the server has accepted. Raises Fails."""
        body = self.body(held=held, **fields)
        answer = self.post(body)
        if not answer.ok or not isinstance(session_id := json_of(answer).get("session_id"), str):
            raise Fails(f"no session could be made: POST /sessions answered {told(answer)}")
        return Session(session_id, body, self.model.talk_of(body["api_key"]))

    def running(self) -> Session:
        """A session whose agent waits for an answer of the model. Raises Fails."""
        session = self.start(held=True)
        deadline = time.monotonic() + self.patience_s
        while not session.talk.calls:
            if time.monotonic() > deadline:
                raise Fails(
                    f"the agent did not call {session.talk.base_url}{COMPLETIONS} within {self.patience_s:g} s; can it reach it?"
                )
            if (view := self.view(session)).get("status") in ("failed", "cancelled", "completed"):
                raise Fails(f"the session ended before its agent called the model: {view}")
            time.sleep(POLL_S)
        return session

    def view(self, session: Session) -> dict[str, Any]:
        """What GET answers now. Raises Fails."""
        answer = self.call("GET", f"/sessions/{session.id}")
        if answer.status_code != 200:
            raise Fails(f"GET /sessions/ID answered {told(answer)}")
        return json_of(answer)

    def ended(self, session: Session) -> dict[str, Any]:
        """What GET answers once the session is terminal, asked again and again. Raises Fails."""
        deadline = time.monotonic() + self.patience_s
        while not is_terminal(view := self.view(session)):
            if time.monotonic() > deadline:
                raise Fails(f"the session did not end within {self.patience_s:g} s; it is {view.get('status')}")
            time.sleep(POLL_S)
        return view

    def cancel(self, session: Session) -> requests.Response:
        return self.call("POST", f"/sessions/{session.id}/cancel")

    def clean_up(self) -> None:
        """Cancel whatever was made since the last time; a server that cannot do that fails a check of its own."""
        while self._made:
            try:
                self.call("POST", f"/sessions/{self._made.pop()}/cancel", timeout_s=5.0)
            except requests.RequestException:
                pass

    @functools.cached_property
    def without_model(self) -> dict[str, Any]:
        """The end of a session whose model cannot be reached."""
        return self.ended(self.start(base_url="http://127.0.0.1:9"))


def json_of(answer: requests.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def told(answer: requests.Response) -> str:
    return f"{answer.status_code} {' '.join(answer.text.split())[:200]}"


def is_terminal(view: dict[str, Any]) -> bool:
    return view.get("status") in {status.value for status in Status if status.terminal}


def expect(holds: bool, seen: str) -> None:
    if not holds:
        raise Fails(seen)
