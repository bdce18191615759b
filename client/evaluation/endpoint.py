"""Client of the endpoint under evaluation: one chat completion, retried through rate limits and transient faults.

Invariant: a call ends as soon as its client disconnects; a rate limit of one call holds back all of them.
"""

import http.client
import json
import random
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from client.errors import ConfigError, RateLimited
from client.evaluation.replies import Action, Decision, Reply, classify
from client.proxies import authorization
from client.redaction import Redaction

CONNECTION_ERRORS = (OSError, http.client.HTTPException)
CONNECT_TIMEOUT_S = 10.0
POLL_S = 0.1  # how often a waiting call checks its client
MAX_PAUSE_S = 60.0  # between two tries, if the endpoint asks for nothing else
MAX_RATE_WAIT_S = 600.0  # a longer wait is left to the next run: sessions have time limits
JITTER = 0.25  # spreads the retries of waiting calls


class ClientDisconnected(Exception):
    """The client of this call has closed its connection."""


class Endpoint:
    """`base_url` as OpenAI's clients take it (`https://HOST/v1`); a bare `http://HOST:PORT` gets the `/v1`.

    `sampling`: request fields that override the agent's. `retry_timeout_s`: how long one call is retried while the
    endpoint fails. `call_timeout_s`: the limit of one try. `proxy`: URL of the proxy to it. Raises ConfigError.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str,
        sampling: dict[str, Any],
        retry_timeout_s: float,
        call_timeout_s: float,
        proxy: str = "",
    ):
        address = urlsplit(base_url)
        is_http = address.scheme in ("http", "https") and address.hostname
        if not is_http or address.query or address.fragment or address.username:
            rule = "must be http://HOST:PORT or https://HOST/PATH, such as https://api.openai.com/v1"
            raise ConfigError(f"--base-url {base_url} {rule}")
        self.url, self.model = base_url, model
        self._address, self._path = address, (address.path.rstrip("/") or "/v1") + "/chat/completions"
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._sampling, self._retry_timeout_s, self._call_timeout_s = sampling, retry_timeout_s, call_timeout_s
        self.proxy = proxy
        self._redaction = Redaction(api_key)  # some endpoints quote the key in their errors
        self._lock = threading.Lock()
        self._limited_until = 0.0  # time.monotonic() at which the rate limit ends

    def complete(
        self,
        request: dict[str, Any],
        client_disconnected: Callable[[], bool],
        on_delay: Callable[[float, Exception | None], None],
    ) -> Decision:
        """The PASS_ON decision for this request.

        `on_delay(seconds, fault)` is called for the time that each rate limit and fault costs. Raises
        ClientDisconnected, or the ModelError of an endpoint that gave no answer in time.
        """
        body = json.dumps(request | {"model": self.model} | self._sampling).encode()
        failing_since, tries = None, 0
        while True:
            if waited_s := self.wait_for_rate_limit(client_disconnected):
                on_delay(waited_s, None)
            started = time.monotonic()
            decision = classify(self._send(body, client_disconnected))
            if decision.action is Action.PASS_ON:
                return decision
            error = decision.error
            assert error is not None, "every other action has an error"
            if decision.action is Action.FAIL:
                raise error
            pause_s = decision.wait_s if decision.wait_s is not None else min(2.0**tries, MAX_PAUSE_S)
            pause_s *= 1.0 + JITTER * random.random()
            now, tries = time.monotonic(), tries + 1
            if decision.action is Action.WAIT:
                failing_since = None
                if (decision.wait_s or 0.0) > MAX_RATE_WAIT_S:
                    remedy = f"it asks to wait {decision.wait_s:.0f} s: run the same command again then"
                    raise RateLimited(f"{error}; {remedy}")
                on_delay(now - started, error)
                with self._lock:
                    self._limited_until = max(self._limited_until, now + pause_s)
                continue
            failing_since = failing_since or started
            if now + pause_s - failing_since > self._retry_timeout_s:
                raise error
            on_delay(now - started + pause_s, error)
            _sleep(pause_s, client_disconnected)

    def wait_for_rate_limit(self, client_disconnected: Callable[[], bool]) -> float:
        """Wait while the endpoint limits the rate; returns the seconds. Raises ClientDisconnected."""
        started = time.monotonic()
        while (left_s := self._limited_until - time.monotonic()) > 0:
            _sleep(left_s * (1.0 + JITTER * random.random()), client_disconnected)
        return max(0.0, time.monotonic() - started) if self._limited_until > started else 0.0

    def _send(self, body: bytes, client_disconnected: Callable[[], bool]) -> Reply:
        """One try. A thread of its own reads the connection, so that the call can be cut. Raises ClientDisconnected."""
        connection = self._connection()
        try:
            connection.connect()
            sock = connection.sock
            sock.settimeout(self._call_timeout_s)
            reply: Future[Reply] = Future()
            exchange = threading.Thread(target=self._exchange, args=(connection, body, reply), daemon=True)
            exchange.start()
            while not wait([reply], POLL_S).done:
                if client_disconnected():
                    with suppress(OSError):  # it may have ended meanwhile
                        sock.shutdown(socket.SHUT_RDWR)
                    raise ClientDisconnected
            return reply.result()
        except CONNECTION_ERRORS as error:
            return Reply(0, {}, f"{type(error).__name__}: {error}".encode())
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        """A connection to the endpoint or its proxy, not opened yet."""
        host, port, tls = self._address.hostname or "", self._address.port, self._address.scheme == "https"
        kind = http.client.HTTPSConnection if tls else http.client.HTTPConnection
        if not self.proxy:
            return kind(host, port, timeout=CONNECT_TIMEOUT_S)
        through = urlsplit(self.proxy)
        connection = kind(through.hostname or "", through.port, timeout=CONNECT_TIMEOUT_S)
        if tls:
            connection.set_tunnel(host, port, authorization(self.proxy))
        return connection

    def _exchange(self, connection: http.client.HTTPConnection, body: bytes, reply: "Future[Reply]") -> None:
        try:
            path, headers = self._path, self._headers
            if self.proxy and self._address.scheme == "http":
                path, headers = f"http://{self._address.netloc}{path}", headers | authorization(self.proxy)
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            reply.set_result(Reply(response.status, headers, self._redaction(response.read())))
        except Exception as error:
            reply.set_exception(error)


def _sleep(seconds: float, client_disconnected: Callable[[], bool]) -> None:
    """Sleep, but raise ClientDisconnected as soon as the client has disconnected."""
    until = time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0:
        if client_disconnected():
            raise ClientDisconnected
        time.sleep(min(POLL_S, left_s))
