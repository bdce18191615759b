"""Client process of one rollout session: creates it at an agent server, waits for its end, writes the output JSON.

Invariant: the output JSON is whole or absent, a non-zero exit leaves `error.json`, a signal cancels the remote session.
Budget: thousands of these sleep beside a trainer, so a session of any length costs under 30 ms of CPU and no child
process: one POST, then one long poll. Hence a bare socket: `http.client` takes 15 ms more to import, and curl wakes up
every second of a long poll, 160 ms an hour. Any Python from 3.8 on, no packages.
Environment variables: see docs/contract.md. error.json: see client/wire.py.
"""

import collections
import json
import os
import re
import signal
import socket
import sys
import time

COMPLETED, FAILED, UNREACHABLE, CANCELLED = 0, 1, 75, 143  # exit codes, as in wire.py: its pydantic costs too much
INVALID = {"boundary": "config", "code": "config_invalid"}  # as in errors.py
CANCEL = {"boundary": "cancel", "code": "cancelled", "exit_code": CANCELLED}
REQUIRED = ("RELAX_OUTPUT_JSON", "RELAX_BASE_URL", "RELAX_SESSION_ID", "RELAX_GROUP_ID", "RELAX_ROLLOUT_MODE",
            "AGENT_SERVER_URL")  # fmt: skip
CONNECT_TIMEOUT_S, RESPONSE_TIMEOUT_S, DISCARD_TIMEOUT_S, DEFAULT_OUTAGE_S = 5.0, 30.0, 5.0, 120
MAX_WAIT_S, MIN_WAIT_S = 3600, 30  # `wait` of a long poll
MAX_PAUSE_S, MAX_RETRY_AFTER_S = 5, 60  # between two requests: the client's own, and one the server asks for
KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))  # a dead peer: 75 s
# `status` is 0 for a lost connection, `body` then its cause; `retry_after` in seconds, 0 for none.
Response = collections.namedtuple("Response", "status body retry_after", defaults=(b"", 0))


class Failure(Exception):
    """The end of a session without output. `error` is the content of error.json; `extra`, if a dict, overrides it."""

    def __init__(self, message, boundary="server", code="server_error", exit_code=FAILED, extra=None):
        super().__init__(message)
        self.exit_code = exit_code
        self.error = {"boundary": boundary, "code": code, "message": message, **(extra if type(extra) is dict else {})}


def json_object(response):
    """The body of a response, or None if it is no JSON object."""
    try:
        content = json.loads(response.body)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def usable_id(created):
    """The session id in a response, "" where there is none. A URL with the segment "." or ".." names another path."""
    session_id = created.get("session_id")
    return session_id if isinstance(session_id, str) and session_id not in (".", "..") else ""


def in_url(text):
    """The text as a segment of a URL's path. As urllib.parse.quote, whose import takes 5 ms."""
    return re.sub(rb"[^A-Za-z0-9._~-]", lambda byte: b"%%%02X" % byte[0][0], text.encode(errors="replace")).decode()


def read_response(stream):
    """Parse an HTTP/1.1 response. Raises ValueError for malformed or truncated data, OSError for a lost connection."""
    version, status, *_ = stream.readline(65536).split(None, 2) + [b"", b""]
    if not version.startswith(b"HTTP/1.") or not status.isdigit():
        raise ValueError("the connection ended without an HTTP response")
    headers = {}
    while (line := stream.readline(65536)).strip():
        name, value = line.partition(b":")[::2]
        headers[name.strip().lower()] = value.strip()
    if not line:
        raise ValueError("the response is truncated")
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
    return Response(int(status), body, min(int(retry_after), MAX_RETRY_AFTER_S) if retry_after.isdigit() else 0)


class Client:
    """One session at one agent server, from its request to its output. `last`: the latest response. Raises Failure."""

    def __init__(self, environment):
        if missing := [name for name in REQUIRED if not environment.get(name)]:
            raise Failure(f"{missing[0]} must be set; the trainer sets it for every session", **INVALID)
        outage_s = environment.get("AGENT_CLIENT_OUTAGE_S") or str(DEFAULT_OUTAGE_S)
        if not outage_s.isdigit():
            raise Failure(f"AGENT_CLIENT_OUTAGE_S={outage_s} must be a whole number of seconds", **INVALID)
        self._url, token = environment["AGENT_SERVER_URL"].rstrip("/"), environment.get("AGENT_SERVER_TOKEN")
        url = re.fullmatch(r"(https?)://((\[[^]/]+\]|[^:/]+)(?::(\d+))?)(/.*)?", self._url)
        if not url:
            raise Failure(f"AGENT_SERVER_URL={self._url} must be http://HOST:PORT or https://HOST:PORT", **INVALID)
        scheme, address, host, port, self._prefix = url.groups("")
        self._tls, self._host = scheme == "https", host.strip("[]")
        self._port = int(port or (443 if self._tls else 80))
        self._headers = f"Host: {address}\r\nConnection: close\r\n"
        self._headers += f"Authorization: Bearer {token}\r\n" if token else ""
        self._address, self._open_tunnel = (self._host, self._port), None
        if environment.get("AGENT_SERVER_PROXIES", "direct") != "direct":
            self._use_proxy(environment)
        self._outage_s, self._environment = int(outage_s), environment
        self._request = self._session = self._down_since = None
        self._retry_pause_s, self.last = 1, Response(0)

    def _use_proxy(self, environment):
        """Make the calls go as the rule in proxies.py says: directly, or through a proxy. Raises Failure."""
        from runpy import run_path  # late: few sessions need it

        rule = run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "proxies.py"))
        try:
            route = rule["socket_route"](self._url, environment)
        except ValueError as wrong:
            raise Failure(str(wrong), **INVALID) from None
        if route:
            self._address, self._open_tunnel, prefix, headers = route
            self._prefix, self._headers = prefix + self._prefix, self._headers + headers

    def run(self):
        """Run the session and write its output. Raises Failure."""
        self._request, created = request_body(self._environment), None
        while created is None:
            created = self._accept(self._call("POST", "/sessions", self._request))
        self._session = usable_id(created)
        if not self._session:
            raise self._failure("the response has no session_id that can stand in a URL")
        view = self._wait_until_terminal()
        on_signal(signal.SIG_IGN)  # the session's end came first
        if view["status"] == "completed":
            return self._write_output(view)
        error = view.get("error") or "no reason given"  # Relax's server gives a text
        reason = (
            f"{error.get('boundary')}/{error.get('code')}: {error.get('message')}" if type(error) is dict else error
        )
        end = CANCEL if view["status"] == "cancelled" else {"code": "session_failed"}
        raise Failure(f"session {self._session} {view['status']}, {reason}", **end, extra=error)

    def discard(self):
        """Cancel the remote session if it may exist. Takes at most DISCARD_TIMEOUT_S; `main` then ends the thread."""
        from threading import Thread  # late: it costs 2 ms. A socket's timeout starts anew with each address and byte

        canceller = Thread(target=self._cancel, daemon=True)
        canceller.start()
        canceller.join(DISCARD_TIMEOUT_S)

    def _cancel(self):
        if self._request and not self._session:  # the server may have the request; the same one gives the same session
            created = self._call("POST", "/sessions", self._request, timeout_s=2.0)
            self._session = usable_id(json_object(created) or {})
        if self._session:
            self._call("POST", f"/sessions/{in_url(self._session)}/cancel", timeout_s=3.0)

    def _wait_until_terminal(self):
        """Long-poll for the session's last state."""
        wait_s, n_cut_polls, poll_pause_s = MAX_WAIT_S, 0, 1
        while True:
            asked_at = time.monotonic()
            path = f"/sessions/{in_url(self._session)}" + (f"?wait={wait_s}" if wait_s else "")
            response = self._call("GET", path, timeout_s=wait_s + 15.0)
            held_s = time.monotonic() - asked_at
            if response.status == 400 and wait_s:
                wait_s = 0  # the server may not know `wait`
                continue
            if response.status == 404:
                raise self._failure(f"session {self._session} is unknown; was the work directory removed?")
            if (response.status == 0 or response.status >= 500) and wait_s and held_s >= MIN_WAIT_S:
                n_cut_polls += 1  # a restart of the server, or a proxy that cuts long requests: wait for less
                wait_s = max(int(held_s * 3 / 4), MIN_WAIT_S)
            if (view := self._accept(response)) is None:
                continue
            if view.get("status") in ("completed", "failed", "cancelled"):
                return view
            if view.get("status") not in ("queued", "running", "grading"):
                raise self._failure(f"session {self._session} has an unknown status")
            if wait_s and n_cut_polls == 1:  # a single cut may have been a restart: ask for the whole time again
                wait_s = MAX_WAIT_S
            if held_s < poll_pause_s:  # the server does not hold long polls, or not for long
                time.sleep(poll_pause_s)
                poll_pause_s = min(poll_pause_s + 1, MAX_PAUSE_S)

    def _accept(self, response):
        """The JSON object of a success; None, after a pause, for a fault that may pass. Raises Failure for others."""
        content = json_object(response)
        if 200 <= response.status < 300:
            if content is None:
                raise self._failure("the response is no JSON object; is this an agent server?")
            self._down_since, self._retry_pause_s = None, 1
            return content
        left_s = float("inf")
        if response.status == 429:  # a busy server is not an outage
            self._down_since = None
        elif response.status in (0, 408) or response.status >= 500:
            self._down_since = time.monotonic() if self._down_since is None else self._down_since
            left_s = self._down_since + self._outage_s - time.monotonic()
            if left_s <= 0:
                problem = f"no usable response for {self._outage_s} s; is the agent server up?"
                raise self._failure(problem, code="server_unreachable", exit_code=UNREACHABLE)
        else:
            error = (content or {}).get("error")
            raise self._failure("the request was refused", boundary="client", code="bad_request", extra=error)
        time.sleep(min(response.retry_after or self._retry_pause_s, left_s))
        self._retry_pause_s = min(self._retry_pause_s + 1, MAX_PAUSE_S)

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
        connection = socket.create_connection(self._address, min(timeout_s, CONNECT_TIMEOUT_S))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        if self._open_tunnel:
            self._open_tunnel(connection)
        if self._tls:
            import ssl

            connection = ssl.create_default_context().wrap_socket(connection, server_hostname=self._host)
        connection.settimeout(timeout_s)
        return connection

    def _failure(self, problem, **error):
        """A Failure that ends with the server's last response."""
        body = self.last.body[:500].decode(errors="replace")
        return Failure(f"{self._url}: {problem} (HTTP {self.last.status}: {body})", **error)

    def _write_output(self, view):
        if type(view.get("reward")) not in (int, float):
            raise self._failure(f"session {self._session} was completed without a reward")
        excluded = ("reward", "agent_exit_status", "client_session_id", "error")
        metadata = {name: value for name, value in view.items() if name not in excluded}
        metadata["exit_status"] = view.get("agent_exit_status")
        path = self._environment["RELAX_OUTPUT_JSON"]
        try:
            write_whole(path, json.dumps({"reward": view["reward"], "metadata": metadata}).encode())
        except OSError as error:
            problem = f"RELAX_OUTPUT_JSON={path} cannot be written: {error}"
            raise Failure(problem, boundary="client", code="no_output") from None


def request_body(environment):
    """Body of POST /sessions. Raises Failure."""
    path = environment.get("RELAX_INPUT_JSON", "")
    try:
        with open(path, "rb") as file:
            metadata = json.loads(file.read() or b"{}").get("metadata") or {}
        fields = {name: metadata[name] for name in ("run_id", "task_id") if metadata.get(name)}
    except FileNotFoundError:
        metadata, fields = {}, {}
    except (OSError, ValueError, AttributeError) as error:
        raise Failure(f"RELAX_INPUT_JSON={path} must be a JSON object, metadata too: {error}", **INVALID) from None
    names = {"session_id": "SESSION_ID", "api_key": "SESSION_ID", "group_id": "GROUP_ID", "mode": "ROLLOUT_MODE"}
    fields.update((field, environment[f"RELAX_{name}"]) for field, name in names.items())
    return {**fields, "base_url": environment["RELAX_BASE_URL"], "metadata": metadata}


def write_whole(path, data):
    """Write through a temporary file and a rename. Raises OSError."""
    with open(f"{path}.part", "wb") as part:
        part.write(data)
    os.replace(f"{path}.part", path)


def report(environment, failure, client):
    """Write error.json and the trace, then the message to stderr; returns the exit code. Raises nothing.

    The trace is the server's last answer, as with Relax's client; where that is no JSON object, the content of
    error.json.
    """
    error = json.dumps(failure.error).encode()
    save(environment, "RELAX_SESSION_IO_DIR", "error.json", error)
    if failure.exit_code != CANCELLED:
        name = re.sub("[^A-Za-z0-9._-]", "_", environment.get("RELAX_SESSION_ID", ""))
        trace = client.last.body if client and json_object(client.last) else error
        save(environment, "AGENT_CLIENT_TRACE_DIR", f"{name}.failed.json", trace)
    print(f"agent_client: {' '.join(str(failure).split())}", file=sys.stderr)
    return failure.exit_code


def save(environment, variable, name, data):
    """Write a file into the folder that the variable names, if it is set. Raises nothing."""
    try:
        if folder := environment.get(variable):
            if variable == "AGENT_CLIENT_TRACE_DIR":
                os.makedirs(folder, exist_ok=True)
            write_whole(os.path.join(folder, name), data)
    except OSError as error:
        print(f"agent_client: {variable}={folder} cannot be written: {error}", file=sys.stderr)


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
            return report(environment, Failure(repr(defect), boundary="client", code="internal"), client)
    except KeyboardInterrupt:
        if client:
            client.discard()
        return report(environment, Failure("cancelled", **CANCEL), client)


if __name__ == "__main__":
    os._exit(main(os.environ))  # skips 2 ms of interpreter shutdown
