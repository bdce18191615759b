"""Classifies an endpoint's replies: pass on, wait, retry or fail.

Invariant: a pure function. Only a completion or a context-window overflow goes on to the agent; every other reply is a
fault of the endpoint.
"""

import email.utils
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from client import refusals
from client.errors import (
    ContextLengthExceeded,
    EndpointFailed,
    EndpointRefused,
    KeyRefused,
    ModelError,
    ModelUnreachable,
    QuotaExhausted,
    RateLimited,
)

RUN_ENDING = (RateLimited, QuotaExhausted, KeyRefused)  # end the whole run: every other call would fail as well
QUOTA_CODES = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"}  # OpenAI: with 429
QUOTA_PATTERN = re.compile(r"insufficient.{0,3}(quota|balance|credit|funds)|credit balance is too low", re.IGNORECASE)
TRANSIENT_STATUSES = (408, 409, 425)  # 4xx that may pass
EXCERPT_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP response. `status` is 0 for a lost connection, `data` then its cause. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class Action(Enum):
    """The next step after a reply."""

    PASS_ON = "the agent gets the reply"
    WAIT = "all calls wait, then this one is sent again"
    RETRY = "this call is sent again, for a limited time"
    FAIL = "the sample has failed; RUN_ENDING errors also end the run"


@dataclass(frozen=True, slots=True)
class Decision:
    """The action for a reply. PASS_ON has `status` and `answer` for the agent, the others have `error`.

    `wait_s`: the pause that the endpoint asks for, None if it asks for none.
    """

    action: Action
    status: int = 200
    answer: dict[str, Any] | None = None
    error: ModelError | None = None
    wait_s: float | None = None


def classify(reply: Reply) -> Decision:
    """The decision on one reply to a chat completion that was not streamed."""
    if reply.status == 0:
        message = f"the endpoint did not answer: {_excerpt(reply)}; is it up, and --base-url right?"
        return Decision(Action.RETRY, error=ModelUnreachable(message))
    body = _object(reply.data)
    if not 200 <= reply.status < 300:
        return _classify_error(reply, body)
    if _is_completion(body):
        return Decision(Action.PASS_ON, 200, body)
    inner = body.get("error")
    if isinstance(inner, dict) and isinstance(inner.get("code"), int) and inner["code"] >= 400:
        return classify(Reply(inner["code"], reply.headers, reply.data))  # routers wrap an upstream's error in a 200
    message = f"the endpoint answered HTTP {reply.status} without a completion: {_excerpt(reply)}"
    return Decision(Action.RETRY, error=EndpointFailed(message))


def _classify_error(reply: Reply, body: dict[str, Any]) -> Decision:
    status, text, excerpt = reply.status, reply.data.decode(errors="replace"), _excerpt(reply)
    if status == 402 or 400 <= status < 500 and (_error_names(body) & QUOTA_CODES or QUOTA_PATTERN.search(text)):
        message = f"the endpoint's quota is used up (HTTP {status}): {excerpt}"
        return Decision(Action.FAIL, error=QuotaExhausted(f"{message}; add some, then run the same command again"))
    if status == 401:
        message = f"the endpoint refuses the API key (HTTP 401): {excerpt}; see --api-key-env"
        return Decision(Action.FAIL, error=KeyRefused(message))
    wait_s = _retry_after_s(reply.headers)
    if status == 429:
        error = RateLimited(f"the endpoint limits the rate (HTTP 429): {excerpt}")
        return Decision(Action.WAIT, error=error, wait_s=wait_s)
    if refusals.classify(status, text) is ContextLengthExceeded:
        code = ContextLengthExceeded.code
        error_body = {"message": f"{code}: {excerpt}", "type": "invalid_request_error", "code": code}
        return Decision(Action.PASS_ON, 400, {"error": error_body})
    if status >= 500 or status in TRANSIENT_STATUSES:
        failure = EndpointFailed(f"the endpoint failed (HTTP {status}): {excerpt}")
        return Decision(Action.RETRY, error=failure, wait_s=wait_s)
    message = f"the endpoint does not accept the request (HTTP {status}): {excerpt}"
    return Decision(Action.FAIL, error=EndpointRefused(f"{message}; check --base-url, --model, --extra"))


def _error_names(body: dict[str, Any]) -> set[Any]:
    """The `code` and `type` of an error body."""
    error = body.get("error")
    if not isinstance(error, dict) or isinstance(error.get("code"), list | dict):
        return set()
    return {error.get("code"), error.get("type")}


def _is_completion(body: dict[str, Any]) -> bool:
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return isinstance(first, dict) and isinstance(first.get("message"), dict)


def _object(data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _excerpt(reply: Reply) -> str:
    text = reply.data[: 4 * EXCERPT_CHARACTERS].decode(errors="replace")
    return " ".join(text.split())[:EXCERPT_CHARACTERS]


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds from Retry-After (a number or a date) or retry-after-ms; None if neither is usable."""
    text, factor = headers.get("retry-after", "").strip(), 1.0
    if not text and (text := headers.get("retry-after-ms", "").strip()):
        factor = 0.001
    if re.fullmatch(r"\d+(\.\d*)?", text):
        return float(text) * factor
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        return None
