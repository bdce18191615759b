"""What an answer of an OpenAI-compatible endpoint means for the call, the sample and the run: a pure function.

Invariant: only a completion, or a prompt that outgrew the context window, goes on to the agent; all else is a fault of the endpoint.
"""

import email.utils
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from client.errors import (
    EndpointFailed,
    EndpointRefused,
    KeyRefused,
    ModelError,
    ModelUnreachable,
    QuotaExhausted,
    RateLimited,
)

STOPPING = (
    RateLimited,
    QuotaExhausted,
    KeyRefused,
)  # raised for one call, these end the run: no other call would fare better
QUOTA_CODES = {
    "insufficient_quota",
    "billing_hard_limit_reached",
    "billing_not_active",
}  # OpenAI sends them with 429, as a rate limit
QUOTA_WORDS = re.compile(r"insufficient.{0,3}(quota|balance|credit|funds)|credit balance is too low", re.IGNORECASE)
OVERFLOW_WORDS = re.compile(
    r"context_length_exceeded|maximum context length|context window|maximum model length|(prompt|input) is too long",
    re.IGNORECASE,
)
OVERFLOW_STATUSES = (400, 413, 422)
PASSING_STATUSES = (408, 409, 425)  # 4xx that may be better next time
SAID_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back. `status` is 0 where nothing did, and `data` then says why. `headers` have names in lower case."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class Then(Enum):
    """What is to be done."""

    PASS_ON = "the agent gets the answer"
    WAIT = "all calls wait, then this one is made again"
    RETRY = "this call is made again, for a limited time"
    FAIL = "the sample has failed; see STOPPING for the run"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`answer` and `status` are for the agent, where it gets them; `error` says what is wrong elsewhere. `wait_s`: what the endpoint asks for."""

    then: Then
    status: int = 200
    answer: dict[str, Any] | None = None
    error: ModelError | None = None
    wait_s: float | None = None


def judge(reply: Reply) -> Verdict:
    """The verdict on one reply to a chat completion that was not streamed."""
    if reply.status == 0:
        return Verdict(
            Then.RETRY,
            error=ModelUnreachable(f"the endpoint did not answer: {_said(reply)}; is it up, and --base-url right?"),
        )
    body = _object(reply.data)
    if 200 <= reply.status < 300:
        if _is_completion(body):
            return Verdict(Then.PASS_ON, 200, body)
        inner = body.get("error")
        if (
            isinstance(inner, dict) and isinstance(inner.get("code"), int) and inner["code"] >= 400
        ):  # routers wrap errors of others in a 200
            return judge(Reply(inner["code"], reply.headers, reply.data))
        return Verdict(
            Then.RETRY,
            error=EndpointFailed(f"the endpoint answered HTTP {reply.status} without a completion: {_said(reply)}"),
        )
    return _judge_error(reply, body)


def _judge_error(reply: Reply, body: dict[str, Any]) -> Verdict:
    status, text = reply.status, reply.data.decode(errors="replace")
    error = body.get("error")
    named = (
        {error.get("code"), error.get("type")}
        if isinstance(error, dict) and not isinstance(error.get("code"), list | dict)
        else set()
    )
    if status == 402 or 400 <= status < 500 and (named & QUOTA_CODES or QUOTA_WORDS.search(text)):
        told = f"the endpoint's quota is used up (HTTP {status}): {_said(reply)}; add some, then run the same command again"
        return Verdict(Then.FAIL, error=QuotaExhausted(told))
    if status == 401:
        return Verdict(
            Then.FAIL,
            error=KeyRefused(f"the endpoint refuses the API key (HTTP 401): {_said(reply)}; see --api-key-env"),
        )
    wait_s = _retry_after_s(reply.headers)
    if status == 429:
        return Verdict(
            Then.WAIT, error=RateLimited(f"the endpoint limits the rate (HTTP 429): {_said(reply)}"), wait_s=wait_s
        )
    if status in OVERFLOW_STATUSES and OVERFLOW_WORDS.search(text):
        # The agents know an overflow by this code, whatever words the endpoint has for it.
        told = {
            "message": f"context_length_exceeded: {_said(reply)}",
            "type": "invalid_request_error",
            "code": "context_length_exceeded",
        }
        return Verdict(Then.PASS_ON, 400, {"error": told})
    if status >= 500 or status in PASSING_STATUSES:
        return Verdict(
            Then.RETRY, error=EndpointFailed(f"the endpoint failed (HTTP {status}): {_said(reply)}"), wait_s=wait_s
        )
    told = (
        f"the endpoint does not accept the request (HTTP {status}): {_said(reply)}; check --base-url, --model, --extra"
    )
    return Verdict(Then.FAIL, error=EndpointRefused(told))


def _is_completion(body: dict[str, Any]) -> bool:
    choices = body.get("choices")
    return (
        isinstance(choices, list)
        and bool(choices)
        and isinstance(choices[0], dict)
        and isinstance(choices[0].get("message"), dict)
    )


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _said(reply: Reply) -> str:
    return " ".join(reply.data[: 4 * SAID_CHARACTERS].decode(errors="replace").split())[:SAID_CHARACTERS]


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds, from Retry-After as a number or a date, or from retry-after-ms; None where there is no usable one."""
    text, factor = headers.get("retry-after", "").strip(), 1.0
    if not text and (text := headers.get("retry-after-ms", "").strip()):
        factor = 0.001
    if re.fullmatch(r"\d+(\.\d*)?", text):
        return float(text) * factor
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        return None
