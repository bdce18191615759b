"""The model of conformance sessions: an OpenAI-compatible API that holds its responses until they are released.

Invariant: a call belongs to the session whose name is in its path (base_url ends with it) or in its bearer token. Its
responses are that session's commands in turn, then the submit command for ever, so that a released session ends.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from client.http_server import JsonHandler, serving

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
COMPLETIONS = "/v1/chat/completions"
POLL_S = 0.02  # how often a held call checks whether its client has disconnected


@dataclass(frozen=True)
class Call:
    """One model call as it arrived; `at` is time.monotonic()."""

    path: str
    authorization: str
    at: float


@dataclass
class ModelSession:
    """The model calls of one session. `open_calls`: those that arrived and were neither answered nor given up."""

    name: str
    base_url: str
    commands: tuple[str, ...] = ()
    released: threading.Event = field(default_factory=threading.Event)
    calls: list[Call] = field(default_factory=list)
    open_calls: int = 0


class Model:
    """The model sessions by name."""

    def __init__(self) -> None:
        self.url = ""
        self._sessions: dict[str, ModelSession] = {}

    def add_session(self, name: str, *, released: bool, commands: tuple[str, ...] = ()) -> ModelSession:
        """A new session whose agent gets these commands before it submits. Each call waits until `released` is set."""
        session = self._sessions[name] = ModelSession(name, f"{self.url}/{name}", commands)
        if released:
            session.released.set()
        return session

    def get_session(self, name: str) -> ModelSession:
        return self._sessions[name]

    def release_all(self) -> None:
        for session in list(self._sessions.values()):
            session.released.set()

    def respond(
        self, path: str, authorization: str, body: dict[str, Any], client_disconnected: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """The completion, once the session is released; None if the caller left before."""
        by_path = self._sessions.get(path.split("/")[1])
        session = by_path or self._sessions.get(authorization.removeprefix("Bearer ").removesuffix("-key"))
        if session is None:
            return completion(body, 1)
        session.calls.append(Call(path, authorization, time.monotonic()))
        session.open_calls += 1
        try:
            while not session.released.wait(POLL_S):
                if client_disconnected():
                    return None
            number = len(session.calls)
            return completion(body, number, session.commands[number - 1] if number <= len(session.commands) else SUBMIT)
        finally:
            session.open_calls -= 1


def completion(request: dict[str, Any], number: int, command: str = SUBMIT) -> dict[str, Any]:
    """A chat completion with this command, as a call of the first tool in the request or else in a ```bash block."""
    message: dict[str, Any] = {"role": "assistant", "content": f"```bash\n{command}\n```"}
    if tools := request.get("tools"):
        function = tools[0]["function"]
        parameters = function.get("parameters", {})
        argument = next(iter([*parameters.get("required", ()), *parameters.get("properties", ())]), "command")
        call = {"name": function["name"], "arguments": json.dumps({argument: command})}
        message |= {"content": None, "tool_calls": [{"id": f"call_{number}", "type": "function", "function": call}]}
    return {
        "id": f"conformance-{number}", "object": "chat.completion", "created": int(time.time()),
        "model": request.get("model", "policy"),
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if tools else "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }  # fmt: skip


@contextmanager
def serving_model(host: str) -> Iterator[Model]:
    """A model on a free port of `host`, an address of this machine that the agent server can reach. Raises OSError."""
    model = Model()

    class Handler(JsonHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            response = model.respond(self.path, self.headers.get("Authorization", ""), body, self.client_disconnected)
            if response is None:
                self.close_connection = True
            else:
                self.send_json(200, response)

    with serving(Handler, host) as model.url:
        try:
            yield model
        finally:
            model.release_all()
