"""Properties of the token tree over random conversations: it holds exactly the engine's prompts and samples."""

import asyncio
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from client.errors import Conflict
from trainer.engines.base import Completion, Sampling
from trainer.gateway.chat import ChatRequest, normalize_message
from trainer.gateway.render import Renderer
from trainer.gateway.session import GatewaySession
from trainer.gateway.trace import History, TokenTree, trace_from_wire, trace_to_wire
from trainer.records import Trace

SAMPLING = Sampling(temperature=0.7, max_tokens=8)
PROPERTIES = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def sequences(trace: Trace) -> list[list[tuple[int, bool]]]:
    """For every sampled segment, in order: the tokens from the root to its end, each with its mask."""
    wholes: list[list[tuple[int, bool]]] = []
    for index, segment in enumerate(trace.segments):
        assert segment.parent < index
        before = wholes[segment.parent] if segment.parent >= 0 else []
        wholes.append(before + [(token, segment.sampled) for token in segment.tokens])
    return [wholes[i] for i, segment in enumerate(trace.segments) if segment.sampled]


def chat(messages, tools=None, max_tokens=None) -> ChatRequest:
    return ChatRequest(messages, tools, max_tokens, stream=False, include_usage=False)


texts = st.text(max_size=12) | st.sampled_from(["<|im_end|>", "<think>x</think>y", "<tool_call>{}</tool_call>", "\n"])
new_messages = st.lists(
    st.one_of(
        st.builds(lambda text: {"role": "user", "content": text}, texts),
        st.builds(lambda text: {"role": "tool", "content": text, "tool_call_id": "1"}, texts),
        st.builds(lambda text: {"role": "assistant", "content": text}, texts),  # a made-up example, never sampled
    ),
    max_size=3,
)


def without_reasoning(message: dict) -> dict:
    return {name: value for name, value in message.items() if name != "reasoning_content"}


def edited(messages: list[dict], at: int) -> list[dict]:
    """The same history with one message rewritten, as a compaction or an editing agent does."""
    return [*messages[:at], messages[at] | {"content": messages[at]["content"] + "edited"}, *messages[at + 1 :]]


@PROPERTIES
@given(data=st.data())
def test_any_tree_of_conversations(data, chatml_tokenizer, thinking_tokenizer, fake_generator, bash_tool):
    draw = data.draw
    tokenizer, tools = draw(
        st.sampled_from([(chatml_tokenizer, None), (thinking_tokenizer, None), (thinking_tokenizer, [bash_tool])])
    )
    renderer = Renderer(tokenizer)
    tokens = st.lists(st.integers(0, len(tokenizer) - 1), min_size=1, max_size=10)
    fake = fake_generator(lambda _: draw(tokens) + draw(st.sampled_from([[], [renderer.end_of_turn]])))

    async def converse() -> Trace:
        session = GatewaySession("key", SAMPLING, renderer, fake, "model")
        # Histories that an agent may continue, each with the engine's sequences that end in it (none: a new context).
        ends: dict[str, tuple[list[dict], list[tuple[int, ...]]]] = {"[]": ([], [])}
        bodies = []
        for _ in range(draw(st.integers(1, 8))):
            history, sequences_before = ends[draw(st.sampled_from(sorted(ends)))]
            if history and draw(st.integers(0, 3)) == 0:
                history, sequences_before = edited(history, draw(st.integers(0, len(history) - 1))), []
            elif draw(st.booleans()):  # most agents do not send reasoning back
                history = [without_reasoning(message) for message in history]
            messages = history + draw(new_messages) or [{"role": "user", "content": "go"}]
            max_tokens = draw(st.sampled_from([None, None, 2, 100]))

            n_calls = len(fake.calls)
            body = await session.complete(chat(messages, tools, max_tokens))
            assert body is await session.complete(chat([dict(m) for m in messages], tools, max_tokens))  # a retry
            if len(fake.calls) == n_calls:  # an identical request was made before
                assert body in bodies
                continue
            bodies.append(body)
            assert len(fake.calls) == n_calls + 1
            call = fake.calls[-1]
            assert call.sampling.max_tokens == min(8, max_tokens or 8) and call.sampling.temperature == 0.7
            assert body["usage"]["prompt_tokens"] == len(call.prompt)
            if sequences_before:
                assert any(call.prompt[: len(before)] == before for before in sequences_before)
            whole = messages + [normalize_message(body["choices"][0]["message"])]
            key = str([without_reasoning(message) for message in whole])
            ends.setdefault(key, (whole, []))[1].append(call.prompt + call.tokens)
        return trace_from_wire(await session.close())

    trace = asyncio.run(converse())
    wholes = sequences(trace)
    assert [[token for token, _ in whole] for whole in wholes] == [[*call.prompt, *call.tokens] for call in fake.calls]
    assert trace.n_sampled() == sum(len(call.tokens) for call in fake.calls)
    assert trace.n_calls == len(fake.calls)
    for whole, call in zip(
        wholes, fake.calls, strict=True
    ):  # the last turn's mask; every earlier turn is the last of its own whole
        assert [sampled for _, sampled in whole[len(call.prompt) :]] == [True] * len(call.tokens)
        assert not whole[len(call.prompt) - 1][1]
    for segment in trace.segments:
        assert len(segment.logprobs) == (len(segment.tokens) if segment.sampled else 0)


def plain_session(tokenizer, fake_generator, text="ok"):
    renderer = Renderer(tokenizer)
    fake = fake_generator(lambda _: [*tokenizer.encode(text), renderer.end_of_turn])
    return GatewaySession("key", Sampling(), renderer, fake, "model"), fake, renderer


def test_each_message_is_rendered_once(chatml_tokenizer, fake_generator):
    """With a template that never rewrites earlier turns, each prompt equals the rendering of the whole conversation."""
    session, fake, renderer = plain_session(chatml_tokenizer, fake_generator)

    async def converse():
        messages = []
        for turn in range(4):
            messages = [*messages, {"role": "user", "content": f"observation {turn}"}]
            body = await session.complete(chat(messages))
            assert list(fake.calls[-1].prompt) == renderer.prompt(messages)
            messages = [*messages, body["choices"][0]["message"]]
        again = await session.complete(chat(messages))  # nothing new: another assistant turn
        assert (
            list(fake.calls[-1].prompt) == renderer.prompt(messages) and again["choices"][0]["message"] == messages[-1]
        )

    asyncio.run(converse())


def test_a_dropped_answer_branches_and_shares_its_prefix(chatml_tokenizer, fake_generator):
    """After a format error, some agents drop the faulty message from the history."""
    session, fake, _ = plain_session(chatml_tokenizer, fake_generator)

    async def converse():
        first = [{"role": "user", "content": "go"}]
        answer = (await session.complete(chat(first)))["choices"][0]["message"]
        second = [*first, answer, {"role": "user", "content": "result"}]
        await session.complete(chat(second))
        await session.complete(chat([*second, {"role": "user", "content": "exactly one block"}]))
        return trace_from_wire(await session.close())

    trace = asyncio.run(converse())
    assert [segment.parent for segment in trace.segments] == [-1, 0, 1, 2, 1, 4]
    assert fake.calls[2].prompt[: len(fake.calls[0].prompt)] == fake.calls[0].prompt


def test_altered_reasoning_is_another_request(thinking_tokenizer, fake_generator):
    session, fake, _ = plain_session(thinking_tokenizer, fake_generator)

    async def converse():
        for reasoning in ("a", "b", "a"):
            answer = {"role": "assistant", "content": "x", "reasoning_content": reasoning}
            await session.complete(chat([{"role": "user", "content": "go"}, answer]))

    asyncio.run(converse())
    assert len(fake.calls) == 2


def test_a_request_that_arrives_as_the_session_closes_is_refused(chatml_tokenizer, fake_generator):
    session, fake, _ = plain_session(chatml_tokenizer, fake_generator)

    async def converse():
        await session.close()
        with pytest.raises(Conflict):
            await session.complete(chat([{"role": "user", "content": "go"}]))

    asyncio.run(converse())
    assert not fake.calls


@given(st.lists(st.floats(max_value=0, allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
def test_the_wire_format_is_lossless(logprobs):
    tree = TokenTree()
    history = History([{"role": "user", "content": "go"}], None)
    answer = {"role": "assistant", "content": "x"}
    first = tree.add(None, [1, 2], Completion(tuple(range(len(logprobs))), tuple(logprobs), "stop", 3), history, answer)
    tree.add(first, [9], Completion((4,), (-0.1,), "length", 3), History([*history.messages, answer], None), answer)
    trace = tree.trace()
    assert trace_from_wire(json.loads(json.dumps(trace_to_wire(trace)))) == trace
    assert [segment.parent for segment in trace.segments] == [-1, 0, 1, 2]


@pytest.mark.parametrize(
    ("sent", "continues"),
    [
        ({"content": "a"}, True),
        ({"content": "a", "reasoning_content": "r"}, True),
        ({"content": "a", "reasoning_content": "other"}, False),
        ({"content": "b"}, False),
        ({"content": "a", "tool_calls": [{"id": "2", "function": {"name": "f", "arguments": {}}}]}, False),
    ],
)
def test_equality_of_messages(sent, continues):
    tree = TokenTree()
    history = History([{"role": "user", "content": "go"}], None)
    turn = tree.add(
        None,
        [1],
        Completion((2,), (-0.1,), "stop", 0),
        history,
        {"role": "assistant", "content": "a", "reasoning_content": "r"},
    )
    messages = [*history.messages, {"role": "assistant", **sent}, {"role": "user", "content": "more"}]
    assert tree.find(History(messages, None)) is (turn if continues else None)
    assert tree.find(History(messages, [{"type": "function", "function": {}}])) is None  # other tools: another prompt
