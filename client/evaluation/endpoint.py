"""The endpoint whose model a batch runs: one chat completion, through rate limits and passing faults.

Invariant: a call ends as soon as its caller has gone; a rate limit that one call meets holds back all of them.
"""

import http.client
import json
import random
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from client.errors import ConfigError, RateLimited
from client.evaluation.verdicts import Reply, Then, Verdict, judge

LOST = (OSError, http.client.HTTPException)
CONNECT_TIMEOUT_S = 10.0
LOOK_S = 0.1  # how often a waiting call looks whether its caller has gone
LONGEST_REST_S = 60.0  # between two tries, where the endpoint asks for nothing else
LONGEST_RATE_WAIT_S = 600.0  # an endpoint that asks for more is better asked by the next run: sessions have time limits
PROXY_PORT = 8080
JITTER = 0.25  # waiting calls do not all come back at once


class CallerGone(Exception):
    """Nobody waits for the answer any more."""


class Endpoint:
    """`base_url` as OpenAI's clients take it (`https://HOST/v1`); a bare `http://HOST:PORT` gets the `/v1`.

    `sampling`: fields put over those of the agent. `patience_s`: how long one call is tried again while the endpoint fails.
    `call_timeout_s`: one try. Raises ConfigError.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str,
        sampling: dict[str, Any],
        patience_s: float,
        call_timeout_s: float,
    ):
        where = urlsplit(base_url)
        if (
            where.scheme not in ("http", "https")
            or not where.hostname
            or where.query
            or where.fragment
            or where.username
        ):
            raise ConfigError(
                f"--base-url {base_url} must be http://HOST:PORT or https://HOST/PATH, such as https://api.openai.com/v1"
            )
        self.url, self.model = base_url, model
        self._where, self._path = where, (where.path.rstrip("/") or "/v1") + "/chat/completions"
        self._headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {api_key}"} if api_key else {}
        )
        self._sampling, self._patience_s, self._call_timeout_s = sampling, patience_s, call_timeout_s
        self._lock = threading.Lock()
        self._open_at = 0.0  # of time.monotonic()

    def complete(
        self, request: dict[str, Any], gone: Callable[[], bool], lost: Callable[[float, Exception | None], None]
    ) -> Verdict:
        """The verdict that passes an answer on. `lost` is told the seconds that faults and rate limits cost, and the fault, as they pass.

        Raises CallerGone, or the ModelError of an endpoint that did not give an answer in time.
        """
        body = json.dumps(request | {"model": self.model} | self._sampling).encode()
        failing_since, tries = None, 0
        while True:
            if waited_s := self.wait_open(gone):
                lost(waited_s, None)
            started = time.monotonic()
            verdict = judge(self._send(body, gone))
            if verdict.then is Then.PASS_ON:
                return verdict
            if verdict.then is Then.FAIL:
                raise verdict.error
            rest_s = verdict.wait_s if verdict.wait_s is not None else min(2.0**tries, LONGEST_REST_S)
            rest_s *= 1.0 + JITTER * random.random()
            now, tries = time.monotonic(), tries + 1
            if verdict.then is Then.WAIT:
                failing_since = None
                if (verdict.wait_s or 0.0) > LONGEST_RATE_WAIT_S:
                    raise RateLimited(
                        f"{verdict.error}; it asks to wait {verdict.wait_s:.0f} s: run the same command again then"
                    )
                lost(now - started, verdict.error)
                with self._lock:
                    self._open_at = max(self._open_at, now + rest_s)
                continue
            failing_since = failing_since or started
            if now + rest_s - failing_since > self._patience_s:
                raise verdict.error
            lost(now - started + rest_s, verdict.error)
            _sleep(rest_s, gone)

    def wait_open(self, gone: Callable[[], bool]) -> float:
        """Wait while the endpoint limits the rate; returns the seconds. Raises CallerGone."""
        began = time.monotonic()
        while (left_s := self._open_at - time.monotonic()) > 0:
            _sleep(left_s * (1.0 + JITTER * random.random()), gone)
        return max(0.0, time.monotonic() - began) if self._open_at > began else 0.0

    def _send(self, body: bytes, gone: Callable[[], bool]) -> Reply:
        """One try. The connection is read by a thread of its own, so that a caller who leaves takes the call along. Raises CallerGone."""
        connection = self._connection()
        try:
            connection.connect()
            connected = connection.sock
            connected.settimeout(self._call_timeout_s)
            answer: Future[Reply] = Future()
            threading.Thread(
                target=self._exchange, args=(connection, body, answer), name="endpoint call", daemon=True
            ).start()
            while not wait([answer], LOOK_S).done:
                if gone():
                    _shut(connected)
                    raise CallerGone
            return answer.result()
        except LOST as lost:
            return Reply(0, {}, f"{type(lost).__name__}: {lost}".encode())
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        """Not yet connected. An https endpoint is reached through HTTPS_PROXY where that is set and NO_PROXY does not name the host."""
        host, port = self._where.hostname, self._where.port
        if self._where.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=CONNECT_TIMEOUT_S)
        proxy = "" if proxy_bypass(host) else getproxies().get("https", "")
        if not proxy:
            return http.client.HTTPSConnection(host, port, timeout=CONNECT_TIMEOUT_S)
        through = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        connection = http.client.HTTPSConnection(
            through.hostname, through.port or PROXY_PORT, timeout=CONNECT_TIMEOUT_S
        )
        connection.set_tunnel(host, port)
        return connection

    def _exchange(self, connection: http.client.HTTPConnection, body: bytes, answer: "Future[Reply]") -> None:
        try:
            connection.request("POST", self._path, body, self._headers)
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            answer.set_result(Reply(response.status, headers, response.read()))
        except Exception as lost:
            answer.set_exception(lost)


def _sleep(seconds: float, gone: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0:
        if gone():
            raise CallerGone
        time.sleep(min(LOOK_S, left_s))


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has ended by itself
