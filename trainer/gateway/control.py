"""The trainer's side of the gateway: open and close sessions, fetch their traces, say which weights are served.

Invariant: `close` may be repeated: it answers the same trace until newer closed sessions push it out.
"""

import requests

from client.errors import ClientError, Conflict, InvalidRequest, ModelUnreachable, NotFound, Unauthorized
from trainer.engines.base import Sampling
from trainer.gateway.trace import trace_from_wire
from trainer.records import Trace

TIMEOUT_S = 60.0
_ERRORS = {error.http_status: error for error in (InvalidRequest, Unauthorized, NotFound, Conflict)}


class GatewayControl:
    """Client of the gateway's control routes; `token` is the gateway's GATEWAY_CONTROL_TOKEN.

    Every method raises ModelUnreachable where no gateway answers, and the ClientError that the gateway's answer names.
    """

    def __init__(self, url: str, token: str):
        self._url = url.rstrip("/")
        self._http = requests.Session()
        self._http.trust_env = False  # the gateway is near: no proxy from the environment
        self._http.headers["Authorization"] = f"Bearer {token}"

    def open(self, session_id: str, key: str, sampling: Sampling) -> None:
        """Let an agent call with bearer token `key`. The same again is a retry; another key or sampling is a Conflict."""
        body = {
            "session_id": session_id,
            "key": key,
            "sampling": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_tokens": sampling.max_tokens,
                "stop_token_ids": list(sampling.stop_token_ids),
            },
        }
        self._call("POST", "/control/sessions", body)

    def close(self, session_id: str) -> Trace:
        """End the session: abort its model calls, answer its trace. NotFound where it was never opened or is forgotten."""
        return trace_from_wire(self._call("DELETE", f"/control/sessions/{session_id}"))

    def status(self) -> dict[str, dict[str, int]]:
        """Open sessions: `{session_id: {"n_calls": answered calls, "in_flight": calls the engine works on}}`."""
        return self._call("GET", "/control/status")

    def set_version(self, version: int) -> None:
        """Completions from now on carry `version`. Conflict while a call is in flight: its weights would be uncertain."""
        self._call("PUT", "/control/version", {"version": version})

    def _call(self, method: str, path: str, body: dict | None = None):
        try:
            response = self._http.request(method, self._url + path, json=body, timeout=TIMEOUT_S)
            answer = response.json()
        except (requests.RequestException, ValueError) as error:
            raise ModelUnreachable(f"the gateway at {self._url} did not answer {method} {path}: {error}") from error
        if response.ok:
            return answer
        raise _ERRORS.get(response.status_code, ClientError)(answer["error"]["message"])
