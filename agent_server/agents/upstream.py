"""Client of the session's model API: adds the session's key, counts calls, and keeps the failure of the last one.

Invariant: when the agent ends, `failure` is the failure of its last model call or None, so that a failure of the
model's API is not attributed to the agent. No reply hands the session's key on.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from agent_server.agents.base import ModelEndpoint
from client import refusals
from client.errors import ModelError, ModelUnreachable
from client.proxies import proxy_for
from client.redaction import Redaction

COMPLETIONS = "/v1/chat/completions"
EVENT_STREAM = "text/event-stream"
CONNECTION_ERRORS = (OSError, aiohttp.ClientError, ValueError)  # TimeoutError is an OSError; ValueError: a wrong URL


class Upstream:
    """Calls to one session's model API, made from one event loop.

    `n_calls`: calls that the API accepted. `failure`: of the last call, None after a success.
    `seconds`: wall seconds in calls, summed over parallel calls.
    """

    def __init__(self, endpoint: ModelEndpoint):
        self.n_calls, self.seconds = 0, 0.0
        self.failure: ModelError | None = None
        self._url = endpoint.base_url.rstrip("/") + COMPLETIONS
        self._redaction = Redaction(endpoint.api_key)
        self._headers = {
            "Authorization": f"Bearer {endpoint.api_key}",
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
        }
        # For each wait on the connection, not for the whole call: a long stream is not an error.
        # aiohttp bounds no upload, so that connecting, upload and the wait for the reply have a bound together.
        self._reply_timeout_s = 2 * endpoint.timeout_s
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=endpoint.timeout_s, sock_read=endpoint.timeout_s)

    @asynccontextmanager
    async def call(self, body: bytes) -> AsyncIterator[tuple[int, str, AsyncIterator[bytes]]]:
        """Make one chat completion call. Yields status, content type and the chunks of the body.

        Leaving the `with` block ends the call, whether its body was read or not.
        Raises ModelUnreachable; reading the chunks raises it too.
        """
        started = time.monotonic()
        try:
            # A session for each call, so that no call fails on a connection that the API closed while it was idle.
            async with aiohttp.ClientSession(headers=self._headers, timeout=self._timeout) as session:
                try:
                    async with asyncio.timeout(self._reply_timeout_s):
                        proxy = proxy_for(self._url, os.environ) or None
                        response = await session.post(self._url, data=body, allow_redirects=False, proxy=proxy)
                except CONNECTION_ERRORS as error:
                    raise self._unreachable(error) from error
                if response.status < 400:
                    self.n_calls, self.failure = self.n_calls + 1, None
                yield response.status, response.content_type, self._chunks(response)
        finally:
            self.seconds += time.monotonic() - started

    async def _chunks(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """Chunks of an event stream as they arrive; any other body as one chunk. An API may echo the key: it is removed
        here, before the sandbox sees it."""
        try:
            if response.content_type == EVENT_STREAM:
                rest = b""
                async for chunk in response.content.iter_any():
                    chunk, rest = self._redaction.split(rest + chunk)
                    if chunk:
                        yield chunk
                if rest:
                    yield rest
            else:
                body = self._redaction(await response.read())
                if response.status >= 400:
                    self.failure = _to_model_error(response.status, body, self.n_calls)
                yield body
        except CONNECTION_ERRORS as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> ModelUnreachable:
        self.failure = ModelUnreachable(f"the model's API did not answer: {type(error).__name__}: {error}")
        return self.failure


def _to_model_error(status: int, body: bytes, n_answered: int) -> ModelError:
    text = body[:1000].decode(errors="replace")
    kind = refusals.classify(status, text, n_answered=n_answered) or ModelError
    return kind(f"the model's API refused with status {status}: {text}")
