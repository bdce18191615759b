"""One rollout session as a trainer's process: creates it at an agent server, waits for its end, writes the output JSON.

Invariant: the output JSON is whole or absent, a non-zero exit leaves `error.json`, a signal cancels the remote session.

Budget: thousands of these sleep beside a trainer, so a session of any length costs under 30 ms of CPU and no child
process: one POST, then one long poll. Hence a bare socket: `http.client` takes 15 ms more to import, and curl wakes up
every second of a long poll, 160 ms an hour. Any Python from 3.8 on, no packages.

Environment: RELAX_INPUT_JSON (its `metadata` goes into the request; run_id and task_id also as fields of their own),
RELAX_OUTPUT_JSON, RELAX_SESSION_IO_DIR (gets error.json, see client/wire.py), RELAX_BASE_URL, RELAX_SESSION_ID,
RELAX_GROUP_ID, RELAX_ROLLOUT_MODE (train|eval), AGENT_SERVER_URL; optional AGENT_SERVER_TOKEN, AGENT_CLIENT_OUTAGE_S
(default 120), AGENT_CLIENT_TRACE_DIR (keeps the last response of a failure).
Exit codes: 0 completed, 1 failed, 143 cancelled, 75 the server was unreachable for longer than the outage limit.
"""

import collections
import json
import os
import re
import signal
import socket
import sys
import time

COMPLETED, FAILED, UNREACHABLE, CANCELLED = 0, 1, 75, 143  # as in wire.py, whose pydantic costs too much here
INVALID = ("config", "config_invalid")  # boundary and code of an error, as in errors.py
ENDS = {"failed": ("server", "session_failed", FAILED), "cancelled": ("cancel", "cancelled", CANCELLED)}
REQUIRED = ("RELAX_OUTPUT_JSON", "RELAX_BASE_URL", "RELAX_SESSION_ID", "RELAX_GROUP_ID", "RELAX_ROLLOUT_MODE",
            "AGENT_SERVER_URL")  # fmt: skip
CONNECT_TIMEOUT_S, RESPONSE_TIMEOUT_S = 5.0, 30.0
LONGEST_WAIT_S, SHORTEST_WAIT_S = 3600, 30  # `wait` of a long poll
LONGEST_PAUSE_S, LONGEST_RETRY_AFTER_S = 5, 60  # between two requests: the client's own, and one the server asks for
KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))  # a dead peer: 75 s
# `status` is 0 for a lost connection, `body` then its cause; `retry_after` in seconds, 0 for none.
Response = collections.namedtuple("Response", "status body retry_after", defaults=(b"", 0))


class Failure(Exception):
    """The end of a session without output. `error` is the content of error.json; `extra` adds to it or overrides it."""

    def __init__(self, message, boundary="server", code="server_error", exit_code=FAILED, extra=None):
        super().__init__(message)
        self.exit_code = exit_code
        self.error = {"boundary": boundary, "code": code, "message": message, **(extra or {})}


def json_object(response):
    """The body of a response, or None if it is no JSON object."""
    try:
        content = json.loads(response.body)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def read_response(stream):
    """Parse an HTTP/1.1 response. Raises ValueError for malformed or truncated data, OSError for a lost connection."""
    version, status, *_ = stream.readline(65536).split(None, 2) + [b"", b""]
    if not version.startswith(b"HTTP/1.") or not status.isdigit():
        raise ValueError("the connection ended without an HTTP response")
    fields = (line.partition(b":") for line in iter(lambda: stream.readline(65536).strip(), b""))
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        body = b""
        while size := int(stream.readline(65536).partition(b";")[0], 16):
            body += stream.read(size)
            stream.readline(65536)
    else:
        length = 0 if status == b"204" else int(headers.get(b"content-length", -1))
        body = stream.read(length)
        if len(body) < length:
            raise ValueError("the response is truncated")
    retry_after = headers.get(b"retry-after", b"")  # seconds; a date counts as none
    return Response(int(status), body, min(int(retry_after), LONGEST_RETRY_AFTER_S) if retry_after.isdigit() else 0)


class Client:
    """One session at one agent server, from its request to its output. `last`: the latest response. Raises Failure."""

    def __init__(self, environment):
        for name in REQUIRED:
            if not environment.get(name):
                raise Failure(f"{name} must be set; the trainer sets it for every session", *INVALID)
        outage_s = environment.get("AGENT_CLIENT_OUTAGE_S") or "120"
        if not outage_s.isdigit():
            raise Failure(f"AGENT_CLIENT_OUTAGE_S={outage_s} must be a whole number of seconds", *INVALID)
        self._url, token = environment["AGENT_SERVER_URL"].rstrip("/"), environment.get("AGENT_SERVER_TOKEN")
        url = re.fullmatch(r"(https?)://((\[[^]/]+\]|[^:/]+)(?::(\d+))?)(/.*)?", self._url)
        if not url:
            raise Failure(f"AGENT_SERVER_URL={self._url} must be http://HOST:PORT or https://HOST:PORT", *INVALID)
        scheme, address, host, port, self._prefix = url.groups("")
        self._tls, self._host = scheme == "https", host.strip("[]")
        self._port = int(port or (443 if self._tls else 80))
        self._headers = f"Host: {address}\r\nConnection: close\r\n"
        self._headers += f"Authorization: Bearer {token}\r\n" if token else ""
        self._outage_s, self._environment = int(outage_s), environment
        self._request = self._session = self._down_since = None
        self._pause_s, self.last = 1, Response(0)

    def run(self):
        """Run the session and write its output. Raises Failure."""
        self._request = request_body(self._environment)
        while not self._accept(self._call("POST", "/sessions", self._request)):
            pass
        self._session = json_object(self.last).get("session_id")
        if not (isinstance(self._session, str) and re.fullmatch("[A-Za-z0-9_-]+", self._session)):
            raise self._failure("gave no session_id that fits a URL")
        view = self._wait_until_terminal()
        on_signal(signal.SIG_IGN)  # the session's end came first
        if view["status"] == "completed":
            return self._write_output(view)
        error = view["error"] if isinstance(view.get("error"), dict) else {}
        reason = f"{error.get('boundary')}/{error.get('code')}: {error.get('message')}" if error else "no reason given"
        raise Failure(f"session {self._session} {view['status']}, {reason}", *ENDS[view["status"]], error)

    def discard(self):
        """Cancel the remote session if it may exist. Takes at most 5 s."""
        if self._request and not self._session:  # the server may have the request; the same one gives the same session
            created = self._call("POST", "/sessions", self._request, timeout_s=2.0)
            self._session = (json_object(created) or {}).get("session_id")
        if self._session:
            self._call("POST", f"/sessions/{self._session}/cancel", timeout_s=3.0)

    def _wait_until_terminal(self):
        """Long-poll for the session's last state."""
        wait_s, cuts = LONGEST_WAIT_S, 0
        while True:
            asked_at = time.monotonic()
            path = f"/sessions/{self._session}" + (f"?wait={wait_s}" if wait_s else "")
            response = self._call("GET", path, timeout_s=wait_s + 15.0)
            held_s = time.monotonic() - asked_at
            if response.status == 400 and wait_s:
                wait_s = 0  # the server may not know `wait`
                continue
            if response.status == 404:
                raise self._failure(f"lost session {self._session}; was its work directory removed?")
            if (response.status == 0 or response.status >= 500) and wait_s and held_s >= SHORTEST_WAIT_S:
                cuts += 1  # a restart of the server, or a proxy that cuts long requests: wait for less
                wait_s = max(int(held_s * 3 / 4), SHORTEST_WAIT_S)
            if not self._accept(response):
                continue
            view = json_object(response)
            if view.get("status") in ("completed", "failed", "cancelled"):
                return view
            if view.get("status") not in ("queued", "running", "grading"):
                raise self._failure(f"gave session {self._session} an unknown status")
            if cuts == 1:
                wait_s = LONGEST_WAIT_S  # a single cut may have been a restart
            if held_s < self._pause_s:  # the server does not hold long polls, or not for long
                self._pause()

    def _accept(self, response):
        """True for a success; False, after a pause, for a fault that may pass. Raises Failure for all others."""
        if 200 <= response.status < 300:
            if json_object(response) is None:
                raise self._failure("responded with no JSON object; is it an agent server?")
            if self._down_since is not None:
                self._down_since, self._pause_s = None, 1
            return True
        left_s = float("inf")
        if response.status == 429:  # a busy server is not an outage
            self._down_since = None
        elif response.status in (0, 408) or response.status >= 500:
            self._down_since = time.monotonic() if self._down_since is None else self._down_since
            left_s = self._down_since + self._outage_s - time.monotonic()
            if left_s <= 0:
                problem = f"gave no usable response for {self._outage_s} s; is the agent server up?"
                raise self._failure(problem, "server", "server_unreachable", UNREACHABLE)
        else:
            error = (json_object(response) or {}).get("error")
            error = error if isinstance(error, dict) else {}
            raise self._failure("refused the request", "client", "bad_request", FAILED, error)
        self._pause(response.retry_after, left_s)
        return False

    def _call(self, method, path, body=None, timeout_s=RESPONSE_TIMEOUT_S):
        """One request over a connection of its own. Every fault below HTTP becomes a Response of status 0."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._headers}Content-Length: {len(data)}\r\n"
        head += "Content-Type: application/json\r\n\r\n" if data else "\r\n"
        try:
            with self._connect(timeout_s) as connection, connection.makefile("rb") as stream:
                connection.sendall(head.encode() + data)
                self.last = read_response(stream)
        except (OSError, ValueError) as error:
            self.last = Response(0, f"{type(error).__name__}: {error}".encode())
        return self.last

    def _connect(self, timeout_s):
        connection = socket.create_connection((self._host, self._port), CONNECT_TIMEOUT_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        if self._tls:
            import ssl

            connection = ssl.create_default_context().wrap_socket(connection, server_hostname=self._host)
        connection.settimeout(timeout_s)
        return connection

    def _pause(self, seconds=0, at_most_s=float("inf")):
        """Sleep for the given seconds, or else for 1 s and each time a second longer, up to 5."""
        time.sleep(min(seconds or self._pause_s, at_most_s))
        self._pause_s = min(self._pause_s + 1, LONGEST_PAUSE_S)

    def _failure(self, problem, *error):
        """A Failure that ends with the server's last response."""
        body = self.last.body[:500].decode(errors="replace")
        return Failure(f"{self._url} {problem} (HTTP {self.last.status}: {body})", *error)

    def _write_output(self, view):
        if type(view.get("reward")) not in (int, float):
            raise self._failure(f"completed session {self._session} without a reward")
        excluded = ("reward", "agent_exit_status", "client_session_id", "error")
        metadata = {name: value for name, value in view.items() if name not in excluded}
        metadata["exit_status"] = view.get("agent_exit_status")
        path = self._environment["RELAX_OUTPUT_JSON"]
        try:
            write_whole(path, json.dumps({"reward": view["reward"], "metadata": metadata}).encode())
        except OSError as error:
            raise Failure(f"RELAX_OUTPUT_JSON={path} cannot be written: {error}", "client", "no_output") from None


def request_body(environment):
    """Body of POST /sessions. Raises Failure."""
    path = environment.get("RELAX_INPUT_JSON", "")
    try:
        with open(path, "rb") as file:
            metadata = json.loads(file.read() or b"{}").get("metadata") or {}
        fields = {name: metadata[name] for name in ("run_id", "task_id") if metadata.get(name)}
    except FileNotFoundError:
        metadata = fields = {}
    except (OSError, ValueError, AttributeError) as error:
        raise Failure(f"RELAX_INPUT_JSON={path} must be a JSON object, metadata too: {error}", *INVALID) from None
    session_id = environment["RELAX_SESSION_ID"]
    return {
        "session_id": session_id, "group_id": environment["RELAX_GROUP_ID"], "mode": environment["RELAX_ROLLOUT_MODE"],
        "base_url": environment["RELAX_BASE_URL"], "api_key": session_id, "metadata": metadata, **fields,
    }  # fmt: skip


def write_whole(path, data):
    """Write through a temporary file and a rename. Raises OSError."""
    with open(f"{path}.part", "wb") as part:
        part.write(data)
    os.replace(f"{path}.part", path)


def report(environment, failure, client):
    """Write error.json and the trace, then the message to stderr; returns the exit code. Raises nothing."""
    files = {"RELAX_SESSION_IO_DIR": ("error.json", json.dumps(failure.error).encode())}
    if failure.exit_code != CANCELLED:
        name = re.sub("[^A-Za-z0-9._-]", "_", environment.get("RELAX_SESSION_ID", ""))
        trace = f"{failure}\n".encode(errors="replace") + (client.last.body if client else b"")
        files["AGENT_CLIENT_TRACE_DIR"] = (f"{name}.log", trace)
    for variable, (name, data) in files.items():
        try:
            if folder := environment.get(variable):
                if variable == "AGENT_CLIENT_TRACE_DIR":
                    os.makedirs(folder, exist_ok=True)
                write_whole(os.path.join(folder, name), data)
        except OSError as error:
            print(f"agent_client: {variable}={folder} cannot be written: {error}", file=sys.stderr)
    print(f"agent_client: {' '.join(str(failure).split())}", file=sys.stderr)
    return failure.exit_code


def on_signal(handler):
    """Set the handler of SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def main(environment):
    """Run the session; returns the exit code."""
    client = None

    def interrupt(_number, _frame):
        on_signal(signal.SIG_IGN)  # only the first one counts
        raise KeyboardInterrupt

    on_signal(interrupt)
    try:
        try:
            client = Client(environment)
            client.run()
            return COMPLETED
        except Failure as failure:
            return report(environment, failure, client)
        except Exception as defect:
            sys.excepthook(*sys.exc_info())
            return report(environment, Failure(repr(defect), "client", "internal"), client)
    except KeyboardInterrupt:
        if client:
            client.discard()
        return report(environment, Failure("cancelled", *ENDS["cancelled"]), client)


if __name__ == "__main__":
    os._exit(main(os.environ))  # skips 2 ms of interpreter shutdown
