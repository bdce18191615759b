"""Relay and endpoint: streams, keys, rate limits."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait

import openai
import pytest

from client.evaluation.endpoint import ClientDisconnected, Endpoint
from client.evaluation.relay import serving_relay
from tests.client.evaluation.fake_endpoint import KEY, Fault, serving_endpoint


@pytest.mark.parametrize("tools", [False, True])
def test_a_stream_is_served_from_a_whole_answer(tools):
    """Read by OpenAI's own client. The request to the endpoint is without `stream`, so that it can be retried."""
    with serving_endpoint() as fake:
        fake.scripts = {"the task": ["ls"]}
        endpoint = Endpoint(
            f"{fake.url}/v1",
            "some-model",
            api_key=KEY,
            sampling={"temperature": 0.3},
            retry_timeout_s=5,
            call_timeout_s=5,
        )
        with serving_relay("127.0.0.1", 0, endpoint) as relay, relay.open_session(pytest.fail) as model_session:
            client = openai.OpenAI(base_url=f"{relay.url}/v1", api_key=model_session.key, max_retries=0)
            request = {"model": "policy", "messages": [{"role": "user", "content": "the task"}]}
            request |= {"stream": True, "stream_options": {"include_usage": True}}
            if tools:
                request["tools"] = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
            chunks = list(client.chat.completions.create(**request))
            models = [model.id for model in client.models.list()]
        deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
        arguments = [call.function.arguments for delta in deltas for call in delta.tool_calls or ()]
        contents = [delta.content for delta in deltas if delta.content]
    assert (arguments if tools else contents) == (
        ['{"command": "ls"}'] if tools else ["```bash\nls\n```"]
    ) and models == ["some-model"]
    assert chunks[-1].usage.total_tokens == 2 and chunks[-2].choices[0].finish_reason == "stop"
    assert [(r["model"], r["temperature"], "stream" in r) for r in fake.requests] == [("some-model", 0.3, False)]
    assert (model_session.calls, model_session.completion_tokens) == (1, 1)
    assert len(model_session.conversation["messages"]) == 2


def test_the_relay_serves_only_its_sessions():
    with serving_endpoint() as fake:
        endpoint = Endpoint(fake.url, "m", api_key=KEY, sampling={}, retry_timeout_s=1, call_timeout_s=5)
        with serving_relay("127.0.0.1", 0, endpoint) as relay:
            with relay.open_session(pytest.fail) as model_session:
                pass
            for key in ("guess", model_session.key, KEY):
                client = openai.OpenAI(base_url=f"{relay.url}/v1", api_key=key, max_retries=0)
                with pytest.raises(openai.AuthenticationError):
                    client.chat.completions.create(model="m", messages=[])
    assert not fake.requests


def test_a_rate_limit_of_one_call_holds_back_all():
    """The other calls are not sent; a call ends when its caller leaves."""
    left = threading.Event()
    with serving_endpoint() as fake, ThreadPoolExecutor(8) as threads:
        fake.fault = lambda text, turn: Fault(429, headers={"Retry-After": "60"})
        endpoint = Endpoint(fake.url, "m", api_key=KEY, sampling={}, retry_timeout_s=1, call_timeout_s=5)
        waiting = threading.Event()

        def call() -> None:
            endpoint.complete({"messages": []}, left.is_set, lambda seconds, fault: waiting.set())

        calls = [threads.submit(call)]
        try:
            assert waiting.wait(10)
            calls += [threads.submit(call) for _ in range(7)]
            assert not wait(calls, timeout=0.5).done and fake.statuses == [429]
        finally:
            left.set()
        assert all(
            isinstance(ended.exception(timeout=10), ClientDisconnected) for ended in calls
        ) and fake.statuses == [429]
