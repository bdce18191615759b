"""The gateway over HTTP, with a generator that stands in for the engine."""

import asyncio
import json

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer

from client.errors import ContextLengthExceeded, ModelUnreachable
from trainer.engines.base import Sampling
from trainer.gateway import session as session_module
from trainer.gateway.control import GatewayControl
from trainer.gateway.render import Renderer
from trainer.gateway.server import create_app
from trainer.gateway.session import Sessions

CONTROL = {"Authorization": "Bearer control"}
AGENT = {"Authorization": "Bearer key"}
MESSAGES = [{"role": "user", "content": "go"}]
CHAT = "/v1/chat/completions"


@pytest.fixture
def gateway(thinking_tokenizer, fake_generator):
    """`gateway(scenario)` runs `await scenario(client, generator)` against a gateway with one open session, key `key`."""
    renderer = Renderer(thinking_tokenizer)

    def run(scenario, text="Hello.", limit=64):
        async def main():
            generator = fake_generator(lambda _: [*thinking_tokenizer.encode(text), renderer.end_of_turn])
            server = TestServer(create_app(Sessions(renderer, generator, "policy"), "control"))
            async with TestClient(server) as client:
                opened = await client.post("/control/sessions", headers=CONTROL, json=opening("one", "key", limit))
                assert opened.status == 200
                return await scenario(client, generator)

        return asyncio.run(main())

    return run


def opening(session_id, key, max_tokens=64):
    return {
        "session_id": session_id,
        "key": key,
        "sampling": {"temperature": 0.9, "top_p": 0.5, "max_tokens": max_tokens},
    }


async def error_of(response, status):
    body = await response.json()
    assert response.status == status, body
    assert set(body["error"]) == {"message", "type", "code", "param"}
    return body["error"]


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_text_answer(gateway):
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


def test_tools_come_back_as_calls_and_continue_the_same_sequence(gateway, bash_tool):
    async def scenario(client, generator):
        body = {"messages": MESSAGES, "tools": [bash_tool], "tool_choice": "auto"}
        answer = await (await client.post(CHAT, headers=AGENT, json=body)).json()
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["reasoning_content"] == "hm"
        # What litellm's message.model_dump() sends back: more fields, nulls, arguments spaced differently.
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


def test_streaming_says_the_same(gateway, bash_tool):
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
def test_a_bad_body_is_answered_with_the_fields_name(gateway, change, param):
    async def scenario(client, generator):
        body = {name: value for name, value in ({"messages": MESSAGES} | change).items() if value is not None}
        error = await error_of(await client.post(CHAT, headers=AGENT, json=body), 400)
        assert (
            error["param"] == param and error["message"].startswith(f"{param}:") and error["code"] == "invalid_request"
        )
        assert not generator.calls

    gateway(scenario)


def test_bodies_that_are_not_json(gateway):
    async def scenario(client, _):
        half_character = b'{"messages": [{"role": "user", "content": "\\ud800"}]}'
        for data in (b"{", b"\xff\xfe", b"[" * 100_000, b"[]", b"null", half_character):
            error = await error_of(await client.post(CHAT, headers=AGENT, data=data), 400)
            assert error["param"] in ("body", "messages")
        assert (
            await client.post(CHAT, headers=AGENT, json={"messages": MESSAGES})
        ).status == 200  # and it still serves
        await error_of(await client.post("/v1/embeddings", headers=AGENT, json={}), 404)
        await error_of(await client.get(CHAT, headers=AGENT), 405)

    gateway(scenario)


def test_keys_and_tokens(gateway):
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


def test_what_the_engine_cannot_do_reaches_the_agent(gateway):
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
        assert (
            await client.post(CHAT, headers=AGENT, json={"messages": MESSAGES})
        ).status == 200  # a failure is not replayed
        trace = await (await client.delete("/control/sessions/one", headers=CONTROL)).json()
        assert trace["n_calls"] == 1

    gateway(scenario)


def test_identical_requests_coalesce_in_flight_and_replay_after(gateway):
    async def scenario(client, generator):
        generator.open.clear()
        body = {"messages": MESSAGES}
        posts = [asyncio.ensure_future(client.post(CHAT, headers=AGENT, json=body)) for _ in range(5)]
        await until(lambda: generator.calls)
        status = await (await client.get("/control/status", headers=CONTROL)).json()
        assert status == {"one": {"n_calls": 0, "in_flight": 1}}
        posts[0].cancel()  # one of the agent's tries goes away: the others' answer is not lost
        await asyncio.sleep(0.05)
        generator.open.set()
        bodies = [await (await post).json() for post in posts[1:]]
        again = await (await client.post(CHAT, headers=AGENT, json=body)).json()
        assert all(body == again for body in bodies) and len(generator.calls) == 1 and not generator.calls[0].aborted
        status = await (await client.get("/control/status", headers=CONTROL)).json()
        assert status == {"one": {"n_calls": 1, "in_flight": 0}}

    gateway(scenario)


def test_a_client_that_leaves_aborts_its_call_and_may_come_back(gateway):
    async def scenario(client, generator):
        generator.open.clear()
        post = asyncio.ensure_future(client.post(CHAT, headers=AGENT, json={"messages": MESSAGES}))
        await until(lambda: generator.calls)
        post.cancel()
        await until(lambda: generator.calls[0].aborted)
        generator.open.set()
        assert (await client.post(CHAT, headers=AGENT, json={"messages": MESSAGES})).status == 200
        trace = await (await client.delete("/control/sessions/one", headers=CONTROL)).json()
        assert trace["n_calls"] == 1 and len(trace["segments"]) == 2  # nothing of the aborted one

    gateway(scenario)


def test_closing_aborts_what_is_in_flight_and_stays_closed(gateway):
    async def scenario(client, generator):
        await client.post(CHAT, headers=AGENT, json={"messages": MESSAGES})
        generator.open.clear()
        other = {"messages": [{"role": "user", "content": "other"}]}
        post = asyncio.ensure_future(client.post(CHAT, headers=AGENT, json=other))
        await until(lambda: len(generator.calls) == 2)
        traces = [await (await client.delete("/control/sessions/one", headers=CONTROL)).json() for _ in range(2)]
        assert traces[0] == traces[1] and traces[0]["n_calls"] == 1
        assert generator.calls[1].aborted
        assert (await error_of(await post, 409))["code"] == "conflict"
        for path, body in ((CHAT, other), (CHAT, {"messages": MESSAGES})):
            await error_of(await client.post(path, headers=AGENT, json=body), 409)
        await error_of(await client.post("/control/sessions", headers=CONTROL, json=opening("one", "key")), 409)
        assert await (await client.get("/control/status", headers=CONTROL)).json() == {}
        await error_of(await client.delete("/control/sessions/never", headers=CONTROL), 404)

    gateway(scenario)


def test_two_closes_at_once_answer_the_same(gateway):
    async def scenario(client, generator):
        generator.open.clear()
        post = asyncio.ensure_future(client.post(CHAT, headers=AGENT, json={"messages": MESSAGES}))
        await until(lambda: generator.calls)
        closes = await asyncio.gather(*(client.delete("/control/sessions/one", headers=CONTROL) for _ in range(3)))
        assert [await close.json() for close in closes] == [{"n_calls": 0, "segments": []}] * 3
        await error_of(await post, 409)

    gateway(scenario)


def test_opening_twice_is_a_retry_unless_it_differs(gateway):
    async def scenario(client, _):
        for body, status in (
            (opening("one", "key"), 200),
            (opening("one", "key", 5), 409),
            (opening("one", "key2"), 409),
            (opening("two", "key"), 409),
            (opening("two", "key2"), 200),
        ):
            assert (await client.post("/control/sessions", headers=CONTROL, json=body)).status == status

    gateway(scenario)


def test_old_closed_sessions_are_forgotten(gateway, monkeypatch):
    monkeypatch.setattr(session_module, "KEEP_CLOSED", 2)

    async def scenario(client, _):
        for name in ("two", "three", "four"):
            await client.post("/control/sessions", headers=CONTROL, json=opening(name, f"key-{name}"))
        for name in ("one", "two", "three"):
            assert (await client.delete(f"/control/sessions/{name}", headers=CONTROL)).status == 200
        await error_of(await client.delete("/control/sessions/one", headers=CONTROL), 404)
        await error_of(await client.post(CHAT, headers=AGENT, json={"messages": MESSAGES}), 401)
        await error_of(
            await client.post(CHAT, headers={"Authorization": "Bearer key-two"}, json={"messages": MESSAGES}), 409
        )

    gateway(scenario)


def test_versions_are_kept_with_the_tokens_and_do_not_change_under_a_call(gateway):
    async def scenario(client, generator):
        await client.post(CHAT, headers=AGENT, json={"messages": MESSAGES})
        assert (await client.put("/control/version", headers=CONTROL, json={"version": 7})).status == 200
        generator.open.clear()
        more = {"messages": [{"role": "user", "content": "more"}]}
        post = asyncio.ensure_future(client.post(CHAT, headers=AGENT, json=more))
        await until(lambda: len(generator.calls) == 2)
        error = await error_of(await client.put("/control/version", headers=CONTROL, json={"version": 8}), 409)
        assert "close one first" in error["message"]
        generator.open.set()
        assert (await post).status == 200
        await error_of(await client.put("/control/version", headers=CONTROL, json={"version": "8"}), 400)
        trace = await (await client.delete("/control/sessions/one", headers=CONTROL)).json()
        assert [segment["version"] for segment in trace["segments"]] == [-1, 0, -1, 7]

    gateway(scenario)


def test_sessions_do_not_share_anything(gateway):
    async def scenario(client, generator):
        await client.post("/control/sessions", headers=CONTROL, json=opening("two", "key2"))
        for key in ("key", "key2"):
            await client.post(CHAT, headers={"Authorization": f"Bearer {key}"}, json={"messages": MESSAGES})
        assert len(generator.calls) == 2
        await client.delete("/control/sessions/one", headers=CONTROL)
        async with ClientSession() as other:  # a connection of its own
            url = client.make_url(CHAT)
            assert (
                await other.post(url, headers={"Authorization": "Bearer key2"}, json={"messages": MESSAGES})
            ).status == 200

    gateway(scenario)


def test_the_trainers_client(gateway):
    async def scenario(client, generator):
        control = GatewayControl(str(client.make_url("")), "control")
        loop = asyncio.get_running_loop()

        def trainer():
            control.open("two", "key2", Sampling(max_tokens=5, stop_token_ids=(3,)))
            control.set_version(2)
            assert control.status()["two"] == {"n_calls": 0, "in_flight": 0}
            trace = control.close("two")
            assert trace == control.close("two") and trace.n_calls == 0 and trace.segments == ()
            caught = []
            for call in (
                lambda: control.close("never"),
                lambda: control.open("two", "key2", Sampling()),
                lambda: GatewayControl(str(client.make_url("")), "wrong").status(),
                lambda: GatewayControl("http://127.0.0.1:9", "control").status(),
            ):
                try:
                    call()
                except Exception as error:
                    caught.append(type(error).__name__)
            return caught

        caught = await loop.run_in_executor(None, trainer)
        assert caught == ["NotFound", "Conflict", "Unauthorized", "ModelUnreachable"]
        assert generator.version == 2

    gateway(scenario)
