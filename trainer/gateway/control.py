"""The trainer's client of the gateway's control routes: open and close sessions, fetch traces, set the weight version.

Invariant: `close` is idempotent. It returns the same trace until newer closed sessions displace it.
"""

from dataclasses import asdict

import requests

from client.errors import ClientError, Conflict, InvalidRequest, ModelUnreachable, NotFound, Unauthorized
from trainer.engines.base import Sampling
from trainer.gateway.trace import trace_from_wire
from trainer.records import Trace

TIMEOUT_S = 60.0
_ERRORS = {error.http_status: error for error in (InvalidRequest, Unauthorized, NotFound, Conflict)}


class GatewayControl:
    """Client of the gateway's control routes; `token` is the gateway's GATEWAY_CONTROL_TOKEN.

    Every method raises ModelUnreachable without a response, and the ClientError that matches the response's status.
    """

    def __init__(self, url: str, token: str):
        self._url = url.rstrip("/")
        self._http = requests.Session()
        self._http.trust_env = False  # no proxy from the environment between servers of one run
        self._http.headers["Authorization"] = f"Bearer {token}"

    def open(self, session_id: str, key: str, sampling: Sampling) -> None:
        """Open a session for an agent with the bearer token `key`.

        Idempotent. Raises Conflict where the session is open with another key or sampling, or has ended.
        """
        body = {"session_id": session_id, "key": key, "sampling": asdict(sampling)}
        self._call("POST", "/control/sessions", body)

    def close(self, session_id: str) -> Trace:
        """End the session, abort its model calls and return its trace. Raises NotFound for an unknown session."""
        return trace_from_wire(self._call("DELETE", f"/control/sessions/{session_id}"))

    def status(self) -> dict[str, dict[str, int]]:
        """The open sessions: `{session_id: {"n_calls": completed calls, "in_flight": calls in the engine}}`."""
        return self._call("GET", "/control/status")

    def set_version(self, version: int) -> None:
        """Set the weight version of later completions. Raises Conflict while a call is in flight."""
        self._call("PUT", "/control/version", {"version": version})

    def _call(self, method: str, path: str, payload: dict | None = None) -> dict:
        try:
            response = self._http.request(method, self._url + path, json=payload, timeout=TIMEOUT_S)
            body = response.json()
        except (requests.RequestException, ValueError) as error:
            raise ModelUnreachable(f"the gateway at {self._url} did not answer {method} {path}: {error}") from error
        if response.ok:
            return body
        raise _ERRORS.get(response.status_code, ClientError)(body["error"]["message"])
