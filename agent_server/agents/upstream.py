"""The session's model API as the relay calls it: with the session's key, counted, and cut when the session wants no more.

Invariant: whether the last call failed, and how, is known when the agent ends, so that a failure of the model's side is
not taken for the agent's.
"""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from agent_server.agents.base import ModelEndpoint
from client.errors import ContextLengthExceeded, ModelError, ModelUnreachable

COMPLETIONS = "/v1/chat/completions"
EVENT_STREAM = "text/event-stream"
LOST = (OSError, http.client.HTTPException)


class Upstream:
    """`n_calls`: accepted by the API. `failure`: of the last call, or None. `seconds`: spent in calls, summed over parallel ones."""

    def __init__(self, endpoint: ModelEndpoint):
        self.n_calls, self.seconds = 0, 0.0
        self.failure: ModelError | None = None
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._in_flight: set[socket.socket] = set()
        self._cut = False

    @contextmanager
    def call(self, body: bytes) -> Iterator[tuple[int, str, Iterator[bytes]]]:
        """One chat completion: status, content type, and the answer's pieces. Leaving the `with` ends the call, read or not.

        Raises ModelUnreachable, as does reading the pieces.
        """
        started, connection = time.monotonic(), None
        try:
            try:
                api, connection = self._connect()
                headers = {"Authorization": f"Bearer {self._endpoint.api_key}", "Content-Type": "application/json"}
                api.request("POST", urlsplit(self._endpoint.base_url).path.rstrip("/") + COMPLETIONS, body, headers)
                response = api.getresponse()
            except LOST as lost:
                raise self._lost(lost) from lost
            if response.status < 400:
                with self._lock:
                    self.n_calls, self.failure = self.n_calls + 1, None
            yield response.status, response.getheader("Content-Type", ""), self._pieces(response)
        finally:
            with self._lock:
                self.seconds += time.monotonic() - started
                self._in_flight.discard(connection)
            if connection:
                _shut(connection)  # closing alone would not do: the response holds it too
                connection.close()

    def cut(self) -> None:
        """End all calls in flight, and let no other begin."""
        with self._lock:
            self._cut = True
            for connection in self._in_flight:
                _shut(connection)

    def _pieces(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        try:
            if response.getheader("Content-Type", "").startswith(EVENT_STREAM):
                while piece := response.read1(65536):
                    yield piece
            else:
                data = response.read()
                if response.status >= 400:
                    self.failure = _refusal(response.status, data)
                yield data
        except LOST as lost:
            raise self._lost(lost) from lost

    def _connect(self) -> tuple[http.client.HTTPConnection, socket.socket]:
        where = urlsplit(self._endpoint.base_url)
        kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
        api = kind(where.hostname, where.port, timeout=self._endpoint.timeout_s)
        api.connect()
        with self._lock:
            if self._cut:
                api.close()
                raise ConnectionAbortedError("the agent has ended")
            self._in_flight.add(api.sock)
        return api, api.sock

    def _lost(self, lost: Exception) -> ModelUnreachable:
        failure = ModelUnreachable(f"the model's API did not answer: {type(lost).__name__}: {lost}")
        if not self._cut:
            self.failure = failure
        return failure


def _refusal(status: int, data: bytes) -> ModelError:
    said = data[:1000].decode(errors="replace")
    if "context_length_exceeded" in said:
        return ContextLengthExceeded(f"the model's API refused: {said}")
    return ModelError(f"the model's API refused with status {status}: {said}")


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has ended by itself
