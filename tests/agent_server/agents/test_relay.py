"""The relay and its client against a local model API."""

import asyncio.base_events
import http.client
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from agent_server.agents.base import ModelEndpoint
from agent_server.agents.relay import MAX_CONNECTIONS, SandboxRelay
from agent_server.agents.upstream import Upstream
from agent_server.sandboxes import apptainer
from client.errors import ModelUnreachable
from client.redaction import fingerprint


@pytest.fixture
def sandbox(tmp_path, demo_image):
    started = apptainer.start(demo_image, scratch=tmp_path, env={}, start_timeout_s=30)
    yield started
    started.close()


@contextmanager
def listening_model() -> Iterator[tuple[socket.socket, Upstream]]:
    """A model API that the test answers by hand, and a client of it."""
    with socket.create_server(("127.0.0.1", 0)) as model:
        yield model, Upstream(ModelEndpoint(f"http://127.0.0.1:{model.getsockname()[1]}", "k", 600.0))


def python(script: str, relay: SandboxRelay) -> str:
    """Shell command that runs a Python script; `URL` in it is the address for chat completions."""
    url = f"http://127.0.0.1:{relay.port}/v1/chat/completions"
    return f"python3 - <<'END'\nimport http.client, socket, urllib.request\nURL = {url!r}\n{script}\nEND"


CALL = 'print(urllib.request.urlopen(URL, b"{}").read().decode())'


def test_a_stream_is_forwarded_chunk_by_chunk(sandbox):
    class Streams(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for number in range(3):
                self.wfile.write(f"data: {number}\n\n".encode())
                time.sleep(0.1)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Streams) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        upstream = Upstream(ModelEndpoint(f"http://127.0.0.1:{server.server_address[1]}", "k", 10.0))
        with SandboxRelay(sandbox.shell_pid, upstream) as relay:
            result = sandbox.run(python(CALL, relay), cwd="/", timeout_s=10)
        server.shutdown()
    assert result.output.split() == ["data:", "0", "data:", "1", "data:", "2"]
    assert (upstream.n_calls, upstream.failure) == (1, None)


def test_the_first_chunk_arrives_while_the_stream_is_open(sandbox):
    script = (
        "answer = urllib.request.urlopen(URL, b'{}'); print(answer.read(5)); open('/tmp/first', 'w'); answer.read()"
    )
    with listening_model() as (model, upstream), SandboxRelay(sandbox.shell_pid, upstream) as relay:
        sandbox.run(f"({python(script, relay)}\n) >/tmp/out 2>&1 &", cwd="/", timeout_s=10)
        connection, _ = model.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nfirst")
            wait = "for n in $(seq 100); do [ -e /tmp/first ] && break; sleep 0.1; done; cat /tmp/out; ls /tmp/first"
            assert "/tmp/first" in sandbox.run(wait, cwd="/", timeout_s=15).output.split()


def test_a_stream_that_breaks_off_has_no_end_mark(sandbox):
    """The program must not take a part of an answer for the whole."""
    script = """
try:
    print(urllib.request.urlopen(URL, b"{}").read())
except http.client.IncompleteRead as error:
    print("incomplete", error.partial)
"""
    with listening_model() as (model, upstream), SandboxRelay(sandbox.shell_pid, upstream) as relay:

        def answer():
            connection, _ = model.accept()
            with connection:
                connection.recv(65536)
                head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                connection.sendall(head + b"5\r\nfirst\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        result = sandbox.run(python(script, relay), cwd="/", timeout_s=10)
        thread.join()
    assert result.output == "incomplete b'first'\n"
    assert isinstance(upstream.failure, ModelUnreachable) and upstream.n_calls == 1


def test_a_chunked_request_is_forwarded_whole(sandbox, model):
    upstream = Upstream(ModelEndpoint(model.url, "chunked", 10.0))
    script = """
body = b'{"messages": [{"role": "user", "content": "' + b"x" * 300_000 + b'"}]}'
print(urllib.request.urlopen(urllib.request.Request(URL, iter([body[:1000], body[1000:]]))).status)
"""
    with SandboxRelay(sandbox.shell_pid, upstream) as relay:
        result = sandbox.run(python(script, relay), cwd="/", timeout_s=10)
    assert result.output == "200\n" and upstream.n_calls == 1
    assert len(model.requests["chunked"][0]["messages"][0]["content"]) == 300_000


def test_connections_over_the_limit_are_closed(sandbox):
    """A program must not use up the worker's descriptors."""
    script = f"""
address = ("127.0.0.1", int(URL.split(":")[2].split("/")[0]))
held = [http.client.HTTPConnection(*address) for _ in range({MAX_CONNECTIONS})]
for connection in held:
    connection.request("GET", "/v1/models")
    connection.getresponse().read()
more = [socket.create_connection(address) for _ in range(10)]
print([s.recv(1) for s in more] == [b""] * 10)
for connection in held:
    connection.close()
while True:
    try:
        print(urllib.request.urlopen(URL.replace("chat/completions", "models")).status)
        break
    except OSError:
        pass
"""
    with listening_model() as (_, upstream), SandboxRelay(sandbox.shell_pid, upstream) as relay:
        result = sandbox.run(python(script, relay), cwd="/", timeout_s=20)
    assert result.output == "True\n200\n"


def test_leaving_aborts_the_calls_in_flight(sandbox):
    with listening_model() as (model, upstream):
        with SandboxRelay(sandbox.shell_pid, upstream) as relay:
            sandbox.run(f"({python(CALL, relay)}\n) >/dev/null 2>&1 &", cwd="/", timeout_s=10)
            connection, _ = model.accept()
            with connection:
                connection.settimeout(5.0)
                assert b"Bearer k" in connection.recv(65536)
                started = time.monotonic()
                relay.close()
                while connection.recv(65536):
                    pass
                assert time.monotonic() - started < 1.0
        assert (upstream.n_calls, upstream.failure) == (0, None)


async def wait_closed(server) -> None:
    """asyncio.Server.wait_closed() of Python 3.12 and later: it waits for the clients to end their connections."""
    if server._waiters is not None:
        waiter = server.get_loop().create_future()
        server._waiters.append(waiter)
        await waiter


def test_closing_does_not_wait_for_an_idle_connection(monkeypatch):
    monkeypatch.setattr(asyncio.base_events.Server, "wait_closed", wait_closed)
    with listening_model() as (_, upstream):
        relay = SandboxRelay(os.getpid(), upstream)
        with relay:
            connection = http.client.HTTPConnection("127.0.0.1", relay.port)
            connection.request("GET", "/v1/models")
            assert connection.getresponse().read()
            closing = threading.Thread(target=relay.close, daemon=True)
            closing.start()
            closing.join(timeout=5.0)
            closed = not closing.is_alive()
            connection.close()
    assert closed


def test_malformed_requests_are_not_logged(caplog):
    """A program must not fill the host's disk with tracebacks in the session's log."""
    caplog.set_level(logging.DEBUG)
    with listening_model() as (_, upstream), SandboxRelay(os.getpid(), upstream) as relay:
        for request in (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", b"no request\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", relay.port)) as connection:
                connection.sendall(request)
                assert connection.recv(100).startswith(b"HTTP/1.0 400")
    assert not [record for record in caplog.records if record.name != "asyncio"]


@pytest.mark.parametrize(
    ("content_type", "status"), [("application/json", 200), ("application/json", 401), ("text/event-stream", 200)]
)
def test_a_key_that_the_api_echoes_stays_outside(content_type, status):
    """In a stream also where the key is parted between two chunks."""
    key = "sk-0123456789"

    class Echoes(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.end_headers()
            for part in ("data: Bearer sk-01", "23456789\n\n", "data: end"):
                self.wfile.write(part.encode())
                time.sleep(0.1)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Echoes) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        upstream = Upstream(ModelEndpoint(f"http://127.0.0.1:{server.server_port}", key, 10.0))
        with SandboxRelay(os.getpid(), upstream) as relay:
            connection = http.client.HTTPConnection("127.0.0.1", relay.port, timeout=10.0)
            connection.request("POST", "/v1/chat/completions", "{}")
            with connection.getresponse() as response:
                text = response.read().decode()
        server.shutdown()
    assert text == f"data: Bearer {fingerprint(key)}\n\ndata: end" and key not in str(upstream.failure)


def test_a_url_that_cannot_be_parsed_is_a_failure_of_the_model():
    with SandboxRelay(os.getpid(), upstream := Upstream(ModelEndpoint("http://[::1/v1", "k", 10.0))) as relay:
        assert post(relay) == 502
    assert isinstance(upstream.failure, ModelUnreachable)


def test_an_api_that_reads_no_request_is_a_failure_of_the_model():
    """The body is more than the sockets' buffers hold, so that its upload stalls."""
    with socket.create_server(("127.0.0.1", 0)) as model:
        upstream = Upstream(ModelEndpoint(f"http://127.0.0.1:{model.getsockname()[1]}", "k", 0.5))
        with SandboxRelay(os.getpid(), upstream) as relay:
            assert post(relay, "x" * 20_000_000) == 502
    assert isinstance(upstream.failure, ModelUnreachable)


def post(relay: SandboxRelay, content: str = "hello") -> int:
    """Status of a chat completion."""
    connection = http.client.HTTPConnection("127.0.0.1", relay.port, timeout=10.0)
    body = f'{{"messages": [{{"role": "user", "content": "{content}"}}]}}'
    connection.request("POST", "/v1/chat/completions", body)
    with connection.getresponse() as response:
        return response.status
