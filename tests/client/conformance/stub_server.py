"""A second implementation of the contract, with faults that can be switched on one at a time.

A session is queued for a moment, calls its model once, and is completed with reward 0.0 once the model has responded.
"""

import http.client
import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import parse_qs, urlsplit

from client.http_server import JsonHandler, serving
from client.wire import EXIT_CODES, Status

QUEUED_S = 0.2
TOKEN = "s3cret"
FIELDS = {
    "session_id": str,
    "group_id": str,
    "mode": str,
    "base_url": str,
    "api_key": str,
    "task_id": str,
    "run_id": str,
    "metadata": dict,
}
REQUIRED = ("session_id", "group_id", "mode", "base_url", "api_key")


class Session:
    """A session, and the thread that is its agent."""

    def __init__(self, body: dict, task_id: str, fault: str):
        self.body, self.fault = body, fault
        self.ended = threading.Event()
        self.ended_at = self.reads = 0
        self.connection: http.client.HTTPConnection | None = None
        self.view = {
            "session_id": uuid.uuid4().hex,
            "client_session_id": body["session_id"],  # but not where it is the key
            "status": "queued",
            "exit_code": None,
            "error": None,
            "task_id": task_id,
        }
        if body["session_id"] == body["api_key"] and fault != "the key is told":
            self.view["client_session_id"] = "(the key)"
        if fault == "client id left out":
            del self.view["client_session_id"]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        if self.ended.wait(QUEUED_S):
            return
        self.view["status"] = "running"
        try:
            self._call_model()
        except OSError as lost:
            if self.fault == "no model scores 0":
                return self.end("completed", reward=0.0, agent_exit_status="Submitted", submission="", n_calls=0)
            extra = {"reward": 0.0} if self.fault == "failed with a reward" else {}
            error: object = {"boundary": "model", "code": "model_unreachable", "message": str(lost)}
            return self.end("failed", error=str(lost) if self.fault == "an error is a text" else error, **extra)
        if self.fault == "a submission fails":
            return self.end("failed", error={"boundary": "grader", "code": "grader_error", "message": "no tests"})
        reward = {} if self.fault == "completed without a reward" else {"reward": 0.0}
        self.end("completed", agent_exit_status="Submitted", submission="", n_calls=1, **reward)

    def _call_model(self) -> None:
        url = urlsplit(self.body["base_url"])
        path = "" if self.fault == "path of base_url dropped" else url.path
        self.connection = http.client.HTTPConnection(url.hostname, url.port)
        headers = {} if self.fault == "key not sent" else {"Authorization": f"Bearer {self.body['api_key']}"}
        path += "/chat/completions" if self.fault == "called without /v1" else "/v1/chat/completions"
        self.connection.request("POST", path, json.dumps({"messages": []}), headers)
        message = json.loads(self.connection.getresponse().read())["choices"][0]["message"]
        assert "COMPLETE_TASK" in message["content"]

    def end(self, status: str, **fields) -> None:
        if self.ended.is_set():
            return
        code = EXIT_CODES[Status(status)]
        if (status, self.fault) in (("failed", "failed with exit code 2"), ("cancelled", "cancelled with exit code 1")):
            code = 3 - code if code < 3 else 1
        self.view |= {"status": status, "exit_code": code, **fields}
        self.ended_at = time.monotonic()
        self.ended.set()

    def cancel(self) -> None:
        if self.fault == "cancelled late" and not self.ended.is_set():
            threading.Timer(3.0, self.end, ["cancelled"]).start()
        elif self.fault == "a cancel changes the end" and self.ended.is_set():
            self.view["status"] = "cancelled"
        else:
            self.end("cancelled")
        sock = self.connection and self.connection.sock
        if sock and self.fault != "model calls go on":
            with suppress(OSError):  # the call is over
                sock.shutdown(socket.SHUT_RDWR)


class Stub:
    """The contract's calls; each returns a status and a JSON body."""

    def __init__(self, fault: str, token: str):
        self.fault, self.token = fault, token
        self.sessions: dict[str, Session] = {}
        self.lock = threading.Lock()

    def create(self, text: bytes) -> tuple[int, object]:
        try:
            body = json.loads(text)
        except ValueError:
            return 500 if self.fault == "500 on bad JSON" else 400, {"error": {"message": "no JSON"}}
        if not isinstance(body, dict):
            return 400, {"error": {"message": "no object"}}
        wrong = [name for name in REQUIRED if name not in body] + [
            name
            for name in FIELDS
            if name in body and not isinstance(body[name], FIELDS[name]) and self.fault != "any type accepted"
        ]
        if body.get("mode") not in ("train", "eval") and not (self.fault == "unknown mode accepted" and "mode" in body):
            wrong.append("mode")
        if self.fault == "unknown fields refused":
            wrong += set(body) - set(FIELDS)
        if wrong:
            return 400, {
                "error": {"message": "something is wrong" if self.fault == "field not named" else f"field {wrong[0]!r}"}
            }
        with self.lock:
            known = next(
                (each for each in self.sessions.values() if each.body["session_id"] == body["session_id"]), None
            )
            if known is None or (known.body == body and self.fault == self._duplicate_fault(known)):
                row = uuid.uuid4().hex if self.fault == "a row for each sample" else body["group_id"]
                known = Session(body, row, self.fault)
                self.sessions[known.view["session_id"]] = known
            differs = next((name for name in REQUIRED if known.body[name] != body[name]), "")
            if differs and self.fault != "another request is the first":
                return 409, {"error": {"message": f"field {differs!r}"}}
        status = known.view["status"]
        return 201 if self.fault == "201 for 200" else 200, {"session_id": known.view["session_id"], "status": status}

    @staticmethod
    def _duplicate_fault(known: Session) -> str:
        """The fault that creates a second session with the name of a known one, by the state of that one."""
        return {"queued": "second session while queued", "running": "second session while running"}.get(
            known.view["status"], "second session after the end"
        )

    def get(self, session_id: str, wait_s: float) -> tuple[int, object]:
        if (session := self.sessions.get(session_id)) is None:
            return 200 if self.fault == "unknown session is 200" else 404, {"error": {"message": "no such session"}}
        if wait_s and self.fault != "wait ignored":
            over = session.ended.wait(wait_s)
            if over and self.fault == "wait answers late":
                time.sleep(1.5)
        elif not wait_s and self.fault == "holds without wait":
            session.ended.wait(2.0)
        view = dict(session.view)
        if session.ended.is_set():
            session.reads += 1
            if self.fault == "terminal answer forgotten" and time.monotonic() - session.ended_at > 0.2:
                return 404, {"error": {"message": "expired"}}
            if self.fault == "terminal answer changes":
                view["seconds"] = session.reads
        return 200, view

    def cancel(self, session_id: str) -> tuple[int, object]:
        if (session := self.sessions.get(session_id)) is None:
            return 404, {"error": {"message": "no such session"}}
        if session.ended.is_set() and self.fault == "cancel answers 409 after the end":
            return 409, {"error": {"message": "it has ended"}}
        session.cancel()
        return 204, None


@contextmanager
def serving_stub(fault: str = "", token: str = "") -> Iterator[str]:
    """URL of a stub on a free port of the loopback."""
    stub = Stub(fault, token)

    class Handler(JsonHandler):
        protocol_version = "HTTP/1.0"  # one connection per call, as from a small server

        def respond(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            url = urlsplit(self.path)
            authorized = not stub.token or self.headers.get("Authorization") == f"Bearer {stub.token}"
            authorized |= fault == "token ignored"
            if url.path == "/healthz":
                self.send_json(401 if fault == "health requires the token" and not authorized else 200, {})
            elif not authorized:
                self.send_json(401, {"error": {"message": "token"}})
            elif self.command == "POST" and url.path == "/sessions":
                self.send_json(*stub.create(data))
            elif self.command == "POST":
                status, content = stub.cancel(url.path.split("/")[2])
                self.send_json(status, content) if status != 204 else self.send_body(204, "application/json", b"")
            else:
                self.send_json(*stub.get(url.path.split("/")[2], float(parse_qs(url.query).get("wait", ["0"])[0])))

        do_GET = do_POST = respond

    with serving(Handler, "127.0.0.1") as url:
        try:
            yield url
        finally:
            for session in stub.sessions.values():
                session.fault = ""
                session.cancel()
