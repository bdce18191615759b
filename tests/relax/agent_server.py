"""An agent server like Relax's: the subset of the contract that it keeps, and nothing beyond.

Its ids hold dots, a repeated request is another session, no long poll is held, errors are texts, and the agent calls
`base_url` + /chat/completions. A session is one conversation without a sandbox; `reward` gives its reward.
"""

import http.client
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from client.http_server import JsonHandler, serving

FIELDS = ("session_id", "group_id", "mode", "base_url", "api_key")
SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
MAX_CALLS = 2


@dataclass
class Session:
    """A session. `place`: its number within its group. `polls`: how often its client has asked for it."""

    session_id: str
    request: dict
    place: int
    status: str = "queued"
    exit_code: int | None = None
    error: str = ""
    result: dict = field(default_factory=dict)
    cancelled: bool = False
    polls: int = 0
    connection: http.client.HTTPConnection | None = None

    def view(self) -> dict:
        shown = {"session_id": self.session_id, "client_session_id": self.request["session_id"]}
        return shown | {"status": self.status, "exit_code": self.exit_code, "error": self.error} | self.result


class RelaxServer:
    """The sessions of one server. `reward(session)` is called at the end of each."""

    def __init__(self, reward: Callable[[Session], float]):
        self.sessions: dict[str, Session] = {}
        self._reward = reward
        self._lock = threading.Lock()

    def create(self, body: bytes) -> tuple[int, dict]:
        try:
            request = {name: str(json.loads(body)[name]) for name in FIELDS}
            {"train": 1, "eval": 1}[request["mode"]]
        except (ValueError, KeyError, TypeError) as wrong:
            return 400, {"error": str(wrong)}
        with self._lock:
            place = sum(session.request["group_id"] == request["group_id"] for session in self.sessions.values())
            session = Session(f"{request['session_id']}-{uuid.uuid4().hex[:8]}", request, place)
            self.sessions[session.session_id] = session
        threading.Thread(target=self._run, args=[session], daemon=True).start()
        return 200, {"session_id": session.session_id, "status": "queued"}

    def get(self, session_id: str) -> tuple[int, dict]:
        with self._lock:
            if session_id not in self.sessions:
                return 404, {"error": repr(session_id)}
            self.sessions[session_id].polls += 1
            return 200, self.sessions[session_id].view()

    def cancel(self, session_id: str) -> tuple[int, dict | None]:
        with self._lock:
            if session_id not in self.sessions:
                return 404, {"error": repr(session_id)}
            session = self.sessions[session_id]
            session.cancelled = True
            if session.connection and session.connection.sock:
                with suppress(OSError):  # the call is over
                    session.connection.sock.shutdown(2)
        return 204, None

    def _run(self, session: Session) -> None:
        session.status = "running"
        try:
            exit_status, n_calls = self._converse(session)
            end = {"status": "completed", "exit_code": 0}
            result = {"agent_exit_status": exit_status, "submission": "", "n_calls": n_calls}
            result["reward"] = self._reward(session)
        except (OSError, ValueError, http.client.HTTPException) as failure:
            end, result = {"status": "failed", "exit_code": 1, "error": f"{type(failure).__name__}: {failure}"}, {}
        if session.cancelled:
            end, result = {"status": "cancelled", "exit_code": 143, "error": "session cancelled"}, {}
        with self._lock:
            session.result = result
            for name, value in end.items():
                setattr(session, name, value)

    def _converse(self, session: Session) -> tuple[str, int]:
        """Exit status and number of the model calls."""
        messages: list[dict] = [{"role": "user", "content": f"Task of group {session.request['group_id']}."}]
        for number in range(1, MAX_CALLS + 1):
            content = self._complete(session, messages)
            if SUBMIT in content:
                return "Submitted", number
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "Go on."}]
        return "LimitsExceeded", MAX_CALLS

    def _complete(self, session: Session, messages: list[dict]) -> str:
        url = urlsplit(session.request["base_url"])
        if session.cancelled:
            raise ConnectionAbortedError("session cancelled")
        session.connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=120)
        headers = {"Authorization": f"Bearer {session.request['api_key']}", "Content-Type": "application/json"}
        body = json.dumps({"model": "openai/policy", "messages": messages})
        session.connection.request("POST", url.path.rstrip("/") + "/chat/completions", body, headers)
        response = session.connection.getresponse()
        text = response.read()
        session.connection.close()
        if response.status != 200:
            raise ValueError(f"HTTP {response.status}: {text!r}")
        return json.loads(text)["choices"][0]["message"]["content"] or ""


@contextmanager
def serving_relax(reward: Callable[[Session], float] = lambda session: 0.0) -> Iterator[tuple[str, RelaxServer]]:
    """URL and sessions of a server on a free port of the loopback."""
    server = RelaxServer(reward)

    class Handler(JsonHandler):
        protocol_version = "HTTP/1.0"

        def respond(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            match [self.command, *(unquote(part) for part in urlsplit(self.path).path.split("/")[1:])]:
                case ["POST", "sessions"]:
                    status, content = server.create(data)
                case ["GET", "sessions", session_id]:
                    status, content = server.get(session_id)
                case ["POST", "sessions", session_id, "cancel"]:
                    status, content = server.cancel(session_id)
                case _:
                    status, content = 404, {"error": "no such path"}
            self.send_json(status, content) if content is not None else self.send_body(status, "text/html", b"")

        do_GET = do_POST = respond

    with serving(Handler, "127.0.0.1") as url:
        yield url, server
        for session_id in server.sessions:
            server.cancel(session_id)
