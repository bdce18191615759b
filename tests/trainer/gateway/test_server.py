"""HTTP routes of the gateway: responses, validation, authorization."""

import json

import pytest

from client.errors import ContextLengthExceeded, ModelUnreachable
from tests.trainer.gateway.calls import AGENT, CHAT, CONTROL, MESSAGES, error_of, opening
from trainer.engines.base import Sampling


def test_a_text_completion(gateway):
    async def scenario(client, generator):
        body = {"model": "any", "messages": MESSAGES, "temperature": 0.1, "top_p": 0.9, "max_tokens": 1000}
        answer = await (await client.post(CHAT, headers=AGENT, json=body)).json()
        (choice,) = answer["choices"]
        assert choice["message"] == {"role": "assistant", "content": "Hello."} and choice["finish_reason"] == "stop"
        assert answer["object"] == "chat.completion" and answer["model"] == "policy"
        (call,) = generator.calls
        usage = answer["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(call.prompt), len(call.tokens))
        # The policy's sampling wins; a request may only ask for fewer tokens.
        assert call.sampling == Sampling(0.9, 0.5, 64, call.sampling.stop_token_ids) and call.sampling.stop_token_ids
        await client.post(CHAT, headers=AGENT, json=body | {"max_completion_tokens": 2})
        assert generator.calls[-1].sampling.max_tokens == 2
        models = await (await client.get("/v1/models", headers=AGENT)).json()
        assert [model["id"] for model in models["data"]] == ["policy"]

    gateway(scenario)


@pytest.mark.parametrize("prefix", ["/v1/", "/", "/agentic_api/v1/", "/agentic_api/", "/a/b/c/v1/"])
def test_completions_are_served_below_any_path(gateway, prefix):
    """Relax's server calls base_url + /chat/completions, and gateway.public_url may have a path."""

    async def scenario(client, generator):
        body = {"messages": MESSAGES}
        assert (await client.post(f"{prefix}chat/completions", headers=AGENT, json=body)).status == 200
        assert (await client.get(f"{prefix}models", headers=AGENT)).status == 200
        assert (await client.post(f"{prefix}chat/completions", json=body)).status == 401
        for path in (f"{prefix}chat/completion", f"{prefix}xchat/completions", f"{prefix}chat/completions/x"):
            assert (await client.post(path, headers=AGENT, json=body)).status == 404

    gateway(scenario)


def test_tool_calls_are_parsed_and_continue_the_same_sequence(gateway, bash_tool):
    async def scenario(client, generator):
        body = {"messages": MESSAGES, "tools": [bash_tool], "tool_choice": "auto"}
        answer = await (await client.post(CHAT, headers=AGENT, json=body)).json()
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["reasoning_content"] == "hm"
        # As litellm's message.model_dump() sends it back: more fields, nulls, other whitespace in the arguments.
        (call,) = choice["message"]["tool_calls"]
        call = call | {"index": 0, "function": call["function"] | {"arguments": '{ "command":"ls" }'}}
        back = {
            "role": "assistant",
            "content": None,
            "tool_calls": [call],
            "function_call": None,
            "provider_specific_fields": {},
        }
        result = {"role": "tool", "tool_call_id": call["id"], "content": [{"type": "text", "text": "total.py"}]}
        response = await client.post(CHAT, headers=AGENT, json=body | {"messages": [*MESSAGES, back, result]})
        assert response.status == 200, await response.text()
        first, second = generator.calls
        assert second.prompt[: len(first.prompt + first.tokens)] == first.prompt + first.tokens
        trace = await (await client.delete("/control/sessions/one", headers=CONTROL)).json()
        assert [segment["parent"] for segment in trace["segments"]] == [-1, 0, 1, 2]

    gateway(
        scenario,
        '<think>\nhm\n</think>\n\n<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>',
        999,
    )


def test_a_stream_carries_the_same_completion(gateway, bash_tool):
    async def scenario(client, generator):
        body = {"messages": MESSAGES, "tools": [bash_tool]}
        whole = await (await client.post(CHAT, headers=AGENT, json=body)).json()
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        response = await client.post(CHAT, headers=AGENT, json=body)
        assert response.content_type == "text/event-stream"
        *events, done = (await response.text()).strip().split("\n\n")
        chunks = [json.loads(event.removeprefix("data: ")) for event in events]
        assert done == "data: [DONE]" and {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert {chunk["id"] for chunk in chunks} == {whole["id"]}
        delta = chunks[0]["choices"][0]["delta"]
        message = whole["choices"][0]["message"]
        assert delta == message | {"tool_calls": [{"index": 0, **message["tool_calls"][0]}]}
        assert chunks[1]["choices"][0]["finish_reason"] == "tool_calls" and chunks[2]["usage"] == whole["usage"]
        assert len(generator.calls) == 1

    gateway(scenario, 'Now.<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>', 999)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages.0.content"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
            "messages.0.tool_calls.0.function.name",
        ),
        ({"tools": [{"name": "bash"}]}, "tools.0.type"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_completion_tokens": True}, "max_completion_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"temperature": "hot"}, "temperature"),
        ({"n": 2}, "n"),
        ({"stop": ["\n"]}, "stop"),
        ({"logprobs": True}, "logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_an_invalid_body_is_rejected_with_the_fields_name(gateway, change, param):
    async def scenario(client, generator):
        body = {name: value for name, value in ({"messages": MESSAGES} | change).items() if value is not None}
        error = await error_of(await client.post(CHAT, headers=AGENT, json=body), 400)
        assert (
            error["param"] == param and error["message"].startswith(f"{param}:") and error["code"] == "invalid_request"
        )
        assert not generator.calls

    gateway(scenario)


def test_a_body_that_is_not_json_is_rejected(gateway):
    async def scenario(client, _):
        half_character = b'{"messages": [{"role": "user", "content": "\\ud800"}]}'
        for data in (b"{", b"\xff\xfe", b"[" * 100_000, b"[]", b"null", half_character):
            error = await error_of(await client.post(CHAT, headers=AGENT, data=data), 400)
            assert error["param"] in ("body", "messages")
        response = await client.post(CHAT, headers=AGENT, json={"messages": MESSAGES})
        assert response.status == 200  # it still serves
        await error_of(await client.post("/v1/embeddings", headers=AGENT, json={}), 404)
        await error_of(await client.get(CHAT, headers=AGENT), 405)

    gateway(scenario)


def test_authorization(gateway):
    async def scenario(client, _):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic key"}, CONTROL):
            error = await error_of(await client.post(CHAT, headers=headers, json={"messages": MESSAGES}), 401)
            assert error["code"] == "unauthorized"
            if headers is not CONTROL:
                await error_of(await client.get("/control/status", headers=headers), 401)
                await error_of(await client.delete("/control/sessions/one", headers=headers), 401)
        await error_of(await client.get("/control/status", headers=AGENT), 401)
        good = opening("x", "k")
        for bad in (
            {"session_id": "x"},
            good | {"session_id": ""},
            good | {"sampling": {"top_p": 2}},
            good | {"kye": 1},
        ):
            await error_of(await client.post("/control/sessions", headers=CONTROL, json=bad), 400)

    gateway(scenario)


def test_errors_of_the_engine_reach_the_agent(gateway):
    async def scenario(client, generator):
        for raised, status, code in (
            (ContextLengthExceeded("maximum context length is 5 tokens"), 400, "context_length_exceeded"),
            (ModelUnreachable("no engine"), 503, "model_unreachable"),
            (RuntimeError("a bug"), 500, "internal"),
        ):

            def fail(_, raised=raised):
                raise raised

            reply, generator.reply = generator.reply, fail
            error = await error_of(await client.post(CHAT, headers=AGENT, json={"messages": MESSAGES}), status)
            assert error["code"] == code and ("bug" not in error["message"])
            generator.reply = reply
        response = await client.post(CHAT, headers=AGENT, json={"messages": MESSAGES})
        assert response.status == 200  # a failure is not replayed
        trace = await (await client.delete("/control/sessions/one", headers=CONTROL)).json()
        assert trace["n_calls"] == 1

    gateway(scenario)
