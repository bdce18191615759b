"""One rollout session, as the trainer's process: asks an agent server to run it, waits, writes the output JSON.

Invariant: the output JSON is whole or absent, and a signal always ends the remote session.

Budget: thousands of these sleep beside a trainer, so a session, however long, costs under 30 ms of CPU and no child process: one POST,
and one GET that the server holds until the end. Hence a bare socket: `http.client` takes 15 ms more to import, and curl wakes
up every second of a held answer, 160 ms an hour. Runs under any Python from 3.8 on, without packages.

Environment: RELAX_INPUT_JSON, RELAX_OUTPUT_JSON (paths), RELAX_BASE_URL, RELAX_SESSION_ID, RELAX_GROUP_ID, RELAX_ROLLOUT_MODE
(train|eval), AGENT_SERVER_URL; optional AGENT_SERVER_TOKEN, AGENT_CLIENT_OUTAGE_S (default 120), AGENT_CLIENT_TRACE_DIR (keeps
the last answer of sessions that failed). `metadata` of the input JSON goes along, its run_id and task_id also as fields of their own.
Exit codes: 0 completed, 1 failed, 143 cancelled, 75 the server could not be reached within the outage limit.
"""

import json
import os
import signal
import socket
import sys
import time

COMPLETED, FAILED, UNREACHABLE, CANCELLED = (
    0,
    1,
    75,
    143,
)  # exit codes, as in wire.py, whose pydantic costs too much here
NEEDED = (
    "RELAX_OUTPUT_JSON",
    "RELAX_BASE_URL",
    "RELAX_SESSION_ID",
    "RELAX_GROUP_ID",
    "RELAX_ROLLOUT_MODE",
    "AGENT_SERVER_URL",
)
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
LONGEST_WAIT_S = 3600  # what the server is asked to hold an answer for
SHORTEST_WAIT_S = 30
LONGEST_REST_S = 5  # between two questions to a server that holds no answers, or gives none
LONGEST_RETRY_AFTER_S = 60  # a server that wants more patience is asked again after a minute anyway
KEEPALIVE = {
    socket.TCP_KEEPIDLE: 15,
    socket.TCP_KEEPINTVL: 15,
    socket.TCP_KEEPCNT: 4,
}  # a peer that is gone is noticed after 75 s


class Ended(Exception):
    """The client's end, with its exit code and what to say."""

    def __init__(self, exit_code, message):
        super().__init__(message)
        self.exit_code = exit_code


class Discarded(BaseException):
    """SIGTERM or SIGINT: nobody wants this session any more."""


class Answer:
    """`status` is 0 where there was none, and `body` then says why. `retry_after` in seconds, 0 where none is given."""

    def __init__(self, status, body=b"", retry_after=0):
        self.status, self.body, self.retry_after = status, body, retry_after

    def __str__(self):
        return " ".join(self.body[:500].decode(errors="replace").split())  # one line: the trainer reads the last

    def json(self):
        """The body as an object. Raises Ended."""
        try:
            found = json.loads(self.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Ended(FAILED, f"the server answered HTTP {self.status} with no JSON object: {self}")
        return found


class Server:
    """One agent server. A connection lives for one call."""

    def __init__(self, url, token):
        scheme, _, rest = url.rstrip("/").partition("://")
        address, slash, prefix = rest.partition("/")
        host, _, port = address.rpartition(":") if ":" in address.rpartition("]")[2] else (address, "", "")
        if scheme not in ("http", "https") or not host or not (port or "0").isdigit():
            raise Ended(FAILED, f"AGENT_SERVER_URL={url} must be http://HOST:PORT or https://HOST:PORT")
        self.url, self._prefix, self._address, self._tls = url.rstrip("/"), slash + prefix, address, scheme == "https"
        self._host, self._port = host.strip("[]"), int(port or (443 if self._tls else 80))
        self._token = f"Authorization: Bearer {token}\r\n" if token else ""

    def call(self, method, path, body=None, timeout_s=ANSWER_TIMEOUT_S):
        """One request, one Answer; whatever went wrong below HTTP is an Answer of status 0."""
        data = b"" if body is None else json.dumps(body).encode()
        kind = "Content-Type: application/json\r\n" if data else ""
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\nHost: {self._address}\r\nConnection: close\r\n{self._token}{kind}Content-Length: {len(data)}\r\n\r\n"
        try:
            with self._connect() as connection:
                connection.settimeout(timeout_s)
                connection.sendall(head.encode() + data)
                with connection.makefile("rb") as stream:
                    return _read_answer(stream)
        except (OSError, ValueError) as lost:
            return Answer(0, f"{type(lost).__name__}: {lost}".encode())

    def _connect(self):
        connection = socket.create_connection((self._host, self._port), CONNECT_TIMEOUT_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        if self._tls:
            import ssl

            connection = ssl.create_default_context().wrap_socket(connection, server_hostname=self._host)
        return connection


def _read_answer(stream):
    """Raises ValueError for what is not HTTP or broke off, OSError for what was lost."""
    version, status, *_ = stream.readline(65536).split(None, 2) + [b"", b""]
    if not version.startswith(b"HTTP/1.") or not status.isdigit():
        raise ValueError("the connection ended without an HTTP answer")
    headers = {}
    while (line := stream.readline(65536)).strip():
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    retry_after = headers.get(b"retry-after", b"")  # seconds; the other form, a date, counts as none
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        body = b""
        while size := int(stream.readline(65536).partition(b";")[0], 16):
            body += stream.read(size)
            stream.readline(65536)
    elif b"content-length" in headers and status != b"204":
        body = stream.read(int(headers[b"content-length"]))
        if len(body) < int(headers[b"content-length"]):
            raise ValueError("the answer broke off")
    else:
        body = b"" if status == b"204" else stream.read()
    return Answer(int(status), body, min(int(retry_after), LONGEST_RETRY_AFTER_S) if retry_after.isdigit() else 0)


class Client:
    def __init__(self, environment):
        """Raises Ended naming the variable that is missing or wrong."""
        for name in NEEDED:
            if not environment.get(name):
                raise Ended(FAILED, f"{name} must be set; the trainer sets it for every session")
        outage_s = environment.get("AGENT_CLIENT_OUTAGE_S") or "120"
        if not outage_s.isdigit():
            raise Ended(FAILED, f"AGENT_CLIENT_OUTAGE_S={outage_s} must be a whole number of seconds")
        self._outage_s = int(outage_s)
        self._environment = environment
        self._server = Server(environment["AGENT_SERVER_URL"], environment.get("AGENT_SERVER_TOKEN", ""))
        self._request = self._session = None
        self._rest_s = 1
        self._down_since = None
        self.last = Answer(0)

    def run(self):
        """The session from request to output. Raises Ended when there is none."""
        self._request = request_body(self._environment)
        created = self._until_accepted(lambda: self._server.call("POST", "/sessions", self._request)).json()
        self._session = created.get("session_id")
        if not isinstance(self._session, str) or not self._session.replace("-", "").replace("_", "").isalnum():
            raise Ended(
                FAILED,
                f"{self._server.url} answered POST /sessions without a session_id that can stand in a URL: {self.last}",
            )
        view = self._terminal()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the end came first
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if view["status"] == "completed":
            return self._write(view)
        if view["status"] == "cancelled":
            raise Ended(CANCELLED, f"session {self._session} was cancelled: {json.dumps(view.get('error'))}")
        raise Ended(FAILED, f"session {self._session} failed: {json.dumps(view.get('error'))}")

    def discard(self):
        """Cancel the remote session, if there can be one. Takes 5 s at most."""
        if self._request and not self._session:
            # The request may or may not have arrived: asking again answers the same session.
            try:
                self._session = (
                    self._server.call("POST", "/sessions", self._request, timeout_s=2.0).json().get("session_id")
                )
            except Ended:
                return
        if self._session:
            self._server.call("POST", f"/sessions/{self._session}/cancel", timeout_s=3.0)

    def _terminal(self):
        """The session's last state, by held GETs."""
        wait_s, cuts = LONGEST_WAIT_S, 0
        while True:
            asked_at = time.monotonic()
            query = f"?wait={wait_s}" if wait_s else ""
            self.last = self._server.call("GET", f"/sessions/{self._session}{query}", timeout_s=wait_s + 15.0)
            held_s = time.monotonic() - asked_at
            if self.last.status == 400 and wait_s:
                wait_s = 0  # perhaps it refuses the question for `wait`
                continue
            if self.last.status == 404:
                raise Ended(
                    FAILED,
                    f"{self._server.url} accepted session {self._session} and does not know it any more: {self.last}; was its work directory lost?",
                )
            if (self.last.status == 0 or self.last.status >= 500) and wait_s and held_s >= SHORTEST_WAIT_S:
                # The server was restarted, or something before it cuts answers that are held for so long: ask for less.
                cuts += 1
                wait_s = max(int(held_s * 3 / 4), SHORTEST_WAIT_S)
            if not self._accepted():
                continue
            view = self.last.json()
            if view.get("status") in ("completed", "failed", "cancelled"):
                return view
            if view.get("status") not in ("queued", "running", "grading"):
                raise Ended(
                    FAILED, f"session {self._session} is in a state this client does not know: {view.get('status')}"
                )
            if cuts == 1:
                wait_s = LONGEST_WAIT_S  # once may have been a restart
            if held_s < self._rest_s:  # it does not hold answers, or not for long
                self._rest()

    def _until_accepted(self, call):
        while True:
            self.last = call()
            if self._accepted():
                return self.last

    def _accepted(self):
        """True for a good answer; False, after a rest, for one that may be better next time. Raises Ended for all others."""
        answer = self.last
        if 200 <= answer.status < 300:
            if self._down_since is not None:
                self._down_since, self._rest_s = None, 1
            return True
        if answer.status == 429:  # a busy server is not an outage
            self._down_since = None
            self._rest(answer.retry_after)
        elif answer.status in (0, 408) or answer.status >= 500:
            now = time.monotonic()
            self._down_since = now if self._down_since is None else self._down_since
            left_s = self._down_since + self._outage_s - now
            if left_s <= 0:
                raise Ended(
                    UNREACHABLE,
                    f"{self._server.url} gave no usable answer for {self._outage_s} s (last: HTTP {answer.status}: {answer}); is the agent server up?",
                )
            self._rest(answer.retry_after, at_most_s=left_s)
        else:
            raise Ended(FAILED, f"{self._server.url} refused (HTTP {answer.status}): {answer}")
        return False

    def _rest(self, seconds=0, at_most_s=float("inf")):
        """Sleep as long as the server says; where it says nothing 1 s, and each time a second longer, up to 5."""
        time.sleep(min(seconds or self._rest_s, at_most_s))
        self._rest_s = min(self._rest_s + 1, LONGEST_REST_S)

    def _write(self, view):
        if isinstance(view.get("reward"), bool) or not isinstance(view.get("reward"), (int, float)):
            raise Ended(FAILED, f"session {self._session} is completed and has no reward: {self.last}")
        left_out = ("reward", "agent_exit_status", "client_session_id", "error")
        metadata = {"exit_status": view.get("agent_exit_status")}
        metadata.update((name, value) for name, value in view.items() if name not in left_out)
        output = self._environment["RELAX_OUTPUT_JSON"]
        try:
            with open(f"{output}.part", "w") as part:
                json.dump({"reward": view["reward"], "metadata": metadata}, part)
            os.replace(f"{output}.part", output)
        except OSError as refused:
            raise Ended(FAILED, f"RELAX_OUTPUT_JSON={output} cannot be written: {refused}") from None


def request_body(environment):
    """Body of POST /sessions. Raises Ended."""
    path = environment.get("RELAX_INPUT_JSON", "")
    try:
        with open(path, "rb") as file:
            given = json.loads(file.read() or b"{}")
        metadata = given.get("metadata") or {}
        named = {name: metadata[name] for name in ("run_id", "task_id") if metadata.get(name)}
    except FileNotFoundError:
        metadata, named = {}, {}
    except (OSError, ValueError, AttributeError) as unusable:
        raise Ended(
            FAILED, f"RELAX_INPUT_JSON={path} must be a JSON object whose metadata is one too: {unusable}"
        ) from None
    session_id = environment["RELAX_SESSION_ID"]
    return {
        "session_id": session_id, "group_id": environment["RELAX_GROUP_ID"], "mode": environment["RELAX_ROLLOUT_MODE"],
        "base_url": environment["RELAX_BASE_URL"], "api_key": session_id, "metadata": metadata, **named,
    }  # fmt: skip


def keep_trace(environment, message, answer):
    """The failure and the last answer, in a file of the session's name under AGENT_CLIENT_TRACE_DIR, where that is set."""
    if not (folder := environment.get("AGENT_CLIENT_TRACE_DIR")):
        return
    name = "".join(
        c if c.isascii() and c.isalnum() or c in "._-" else "_" for c in environment.get("RELAX_SESSION_ID", "")
    )
    try:
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"{name}.log"), "wb") as file:
            file.write(f"{message}\n".encode(errors="replace") + answer.body)
    except OSError as refused:
        print(f"agent_client: AGENT_CLIENT_TRACE_DIR={folder} cannot be written: {refused}", file=sys.stderr)


def main(environment):
    """Returns the exit code."""
    client = None

    def discard(_number, _frame):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise Discarded

    signal.signal(signal.SIGTERM, discard)
    signal.signal(signal.SIGINT, discard)
    try:
        try:
            client = Client(environment)
            client.run()
            return COMPLETED
        except Ended as end:
            print(f"agent_client: {end}", file=sys.stderr)
            if end.exit_code != CANCELLED:
                keep_trace(environment, str(end), client.last if client else Answer(0))
            return end.exit_code
    except Discarded:
        if client:
            client.discard()
        print("agent_client: cancelled", file=sys.stderr)
        return CANCELLED


if __name__ == "__main__":
    os._exit(main(os.environ))  # nothing is open any more: skips 2 ms of tidying up
