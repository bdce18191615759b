"""The model that conformance sessions talk to: OpenAI-compatible, on the standard library, and holding its answers as long as it is told.

Invariant: a call belongs to the talk whose name stands in its path (base_url ends with it) or in its bearer token; the answers
are that talk's commands in turn, then the agent's submit command again and again, so that a released session ends.
"""

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
COMPLETIONS = "/v1/chat/completions"
LOOK_S = 0.02  # how often a held call looks whether it is released or its caller has gone


@dataclass(frozen=True)
class Call:
    """One model call as it arrived; `at` is time.monotonic()."""

    path: str
    authorization: str
    at: float


@dataclass
class Talk:
    """What one session's agent says to the model. `open_calls` are those that arrived and were neither answered nor given up."""

    name: str
    base_url: str
    commands: tuple[str, ...] = ()
    released: threading.Event = field(default_factory=threading.Event)
    calls: list[Call] = field(default_factory=list)
    open_calls: int = 0


class Model:
    """The talks there are, by name."""

    def __init__(self, url: str):
        self.url = url
        self._talks: dict[str, Talk] = {}

    def talk(self, name: str, *, released: bool, commands: tuple[str, ...] = ()) -> Talk:
        """A new talk, which tells the agent these commands before it submits. Not released, it holds every call until `released` is set."""
        talk = self._talks[name] = Talk(name, f"{self.url}/{name}", commands)
        if released:
            talk.released.set()
        return talk

    def talk_of(self, name: str) -> Talk:
        return self._talks[name]

    def release_all(self) -> None:
        for talk in list(self._talks.values()):
            talk.released.set()

    def answer(self, path: str, authorization: str, body: dict, connection: socket.socket) -> dict | None:
        """The completion, once its talk is released; None where the caller went away before."""
        named = (self._talks.get(path.split("/")[1]), self._talks.get(authorization.removeprefix("Bearer ")))
        talk = next((talk for talk in named if talk), None)
        if talk is None:
            return completion(body, 1)
        talk.calls.append(Call(path, authorization, time.monotonic()))
        talk.open_calls += 1
        try:
            while not talk.released.wait(LOOK_S):
                if _closed(connection):
                    return None
            number = len(talk.calls)
            return completion(body, number, talk.commands[number - 1] if number <= len(talk.commands) else SUBMIT)
        finally:
            talk.open_calls -= 1


def completion(request: dict, number: int, command: str = SUBMIT) -> dict[str, Any]:
    """A chat completion that has this command run: by the first tool that the request offers, or in a ```bash block."""
    message: dict[str, Any] = {"role": "assistant", "content": f"```bash\n{command}\n```"}
    if tools := request.get("tools"):
        function = tools[0]["function"]
        parameters = function.get("parameters", {})
        argument = next(iter([*parameters.get("required", ()), *parameters.get("properties", ())]), "command")
        told = {"name": function["name"], "arguments": json.dumps({argument: command})}
        message |= {"content": None, "tool_calls": [{"id": f"call_{number}", "type": "function", "function": told}]}
    return {
        "id": f"conformance-{number}", "object": "chat.completion", "created": int(time.time()), "model": request.get("model", "policy"),
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if tools else "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }  # fmt: skip


@contextmanager
def serving(host: str) -> Iterator[Model]:
    """A model that listens on a free port of `host`, an address of this machine that the agent server can reach. Raises OSError."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            answer = model.answer(self.path, self.headers.get("Authorization", ""), body, self.connection)
            if answer is None:
                self.close_connection = True
                return
            data = json.dumps(answer).encode()
            try:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                self.close_connection = True  # the caller has gone

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    model = Model(f"http://{host}:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield model
    finally:
        model.release_all()
        server.shutdown()
        server.server_close()


def _closed(connection: socket.socket) -> bool:
    readable, _, _ = select.select([connection], [], [], 0)
    try:
        return bool(readable) and not connection.recv(1, socket.MSG_PEEK)
    except OSError:
        return True
