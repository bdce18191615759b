"""Classification of an endpoint's replies, in the formats of several providers."""

import email.utils
import time

import pytest

from client.errors import EndpointFailed, EndpointRefused, KeyRefused, ModelUnreachable, QuotaExhausted, RateLimited
from client.evaluation.replies import Action, Reply, classify

REPLIES = {
    "OpenAI: rate": (429, '{"error": {"code": "rate_limit_exceeded", "type": "tokens"}}', Action.WAIT, RateLimited),
    "OpenAI: quota": (
        429,
        '{"error": {"code": "insufficient_quota", "type": "insufficient_quota"}}',
        Action.FAIL,
        QuotaExhausted,
    ),
    "quota word as type only": (
        429,
        '{"error": {"code": null, "type": "insufficient_quota"}}',
        Action.FAIL,
        QuotaExhausted,
    ),
    "payment required": (402, "", Action.FAIL, QuotaExhausted),
    "Anthropic: credit": (
        400,
        '{"error": {"message": "Your credit balance is too low to access the API"}}',
        Action.FAIL,
        QuotaExhausted,
    ),
    "insufficient balance": (400, '{"error": {"message": "Insufficient Balance"}}', Action.FAIL, QuotaExhausted),
    "Google: rate, as quota": (
        429,
        '[{"error": {"code": 429, "message": "You exceeded your current quota"}}]',
        Action.WAIT,
        RateLimited,
    ),
    "error is text": (429, '{"error": "too many"}', Action.WAIT, RateLimited),
    "wrapped rate": (200, '{"error": {"code": 429, "message": "upstream is busy"}}', Action.WAIT, RateLimited),
    "wrapped quota": (200, '{"error": {"code": 402, "message": "no credits"}}', Action.FAIL, QuotaExhausted),
    "key": (401, '{"error": {"message": "no"}}', Action.FAIL, KeyRefused),
    "forbidden": (403, "", Action.FAIL, EndpointRefused),
    "no such model": (404, '{"error": {"message": "The model does not exist"}}', Action.FAIL, EndpointRefused),
    "moved": (308, "", Action.FAIL, EndpointRefused),
    "request timeout": (408, "", Action.RETRY, EndpointFailed),
    "overloaded": (529, "", Action.RETRY, EndpointFailed),
    "gateway": (504, "<html>", Action.RETRY, EndpointFailed),
    "no choices": (200, '{"choices": []}', Action.RETRY, EndpointFailed),
    "a list": (200, "[]", Action.RETRY, EndpointFailed),
    "nested too deeply": (200, "[" * 100_000, Action.RETRY, EndpointFailed),
    "no connection": (0, "refused", Action.RETRY, ModelUnreachable),
    "completion": (200, '{"choices": [{"message": {"role": "assistant", "content": ""}}]}', Action.PASS_ON, None),
    "OpenAI: overflow": (
        400,
        '{"error": {"code": "context_length_exceeded", "message": "too long"}}',
        Action.PASS_ON,
        None,
    ),
    "vLLM: overflow": (
        400,
        '{"error": {"message": "You passed 9 input tokens. However, the model\'s context length is 8", "code": 400}}',
        Action.PASS_ON,
        None,
    ),
    "Anthropic: overflow": (
        400,
        '{"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}',
        Action.PASS_ON,
        None,
    ),
}


@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_is_classified(name):
    status, body, action, error = REPLIES[name]
    decision = classify(Reply(status, {}, body.encode()))
    assert decision.action is action and type(decision.error) is (error or type(None))
    if action is Action.PASS_ON and status == 400:
        assert (decision.status, decision.answer["error"]["code"]) == (400, "context_length_exceeded")


def test_the_wait_that_an_endpoint_asks_for():
    def asked(**headers: str) -> float | None:
        return classify(Reply(429, {name.replace("_", "-"): value for name, value in headers.items()}, b"")).wait_s

    assert [asked(retry_after="7"), asked(retry_after="0.5"), asked(retry_after_ms="250")] == [7.0, 0.5, 0.25]
    assert asked(retry_after="soon") is asked() is None
    assert asked(retry_after=email.utils.formatdate(time.time() + 30, usegmt=True)) == pytest.approx(30, abs=2)
    assert asked(retry_after="Thu, 01 Jan 1970 00:00:00 GMT") == 0.0
