"""Properties of the token tree over any conversation: what is kept is what the generator was given and sampled."""

import asyncio
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainer.engines.base import Completion, Sampling
from trainer.gateway.chat import ChatRequest
from trainer.gateway.render import Renderer
from trainer.gateway.session import Session
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
given_messages = st.lists(
    st.one_of(
        st.builds(lambda text: {"role": "user", "content": text}, texts),
        st.builds(lambda text: {"role": "tool", "content": text, "tool_call_id": "1"}, texts),
        st.builds(lambda text: {"role": "assistant", "content": text}, texts),  # a made-up example, never sampled
    ),
    max_size=3,
)


@PROPERTIES
@given(data=st.data())
def test_any_tree_of_conversations(data, chatml_tokenizer, thinking_tokenizer, fake_generator, bash_tool):
    tokenizer, tools = data.draw(st.sampled_from([(chatml_tokenizer, None), (thinking_tokenizer, None), (thinking_tokenizer, [bash_tool])]))
    renderer = Renderer(tokenizer)
    tokens = st.lists(st.integers(0, len(tokenizer) - 1), min_size=1, max_size=10)
    endings = st.sampled_from([[], [renderer.end_of_turn]])
    fake = fake_generator(lambda _: data.draw(tokens) + data.draw(endings))
    fake_sequences: dict[str, list[tuple[int, ...]]] = {}  # of each answered history

    async def converse() -> Trace:
        session = Session("key", SAMPLING, renderer, fake, "model")
        histories: list[list[dict]] = [[]]
        answered: dict[str, dict] = {}
        for _ in range(data.draw(st.integers(1, 8))):
            history = list(data.draw(st.sampled_from(histories)))
            continued = str(history) in fake_sequences
            if history and data.draw(st.booleans()) and data.draw(st.booleans()):  # rewritten: a compaction, an edit
                at = data.draw(st.integers(0, len(history) - 1))
                history[at] = {**history[at], "content": (history[at].get("content") or "") + "edited"}
                continued = False
            if continued and data.draw(st.booleans()):  # most agents do not send reasoning back
                history = [{k: v for k, v in message.items() if k != "reasoning_content"} for message in history]
            start = str(history)
            messages = history + data.draw(given_messages)
            if not messages:
                messages = [{"role": "user", "content": "go"}]
            max_tokens = data.draw(st.sampled_from([None, None, 2, 100]))
            n_calls = len(fake.calls)
            body = await session.complete(chat(messages, tools, max_tokens))
            assert body is await session.complete(chat([dict(m) for m in messages], tools, max_tokens))  # a retry
            assert len(fake.calls) - n_calls <= 1
            if len(fake.calls) == n_calls:
                assert body in answered.values()
                continue
            call = fake.calls[-1]
            assert call.sampling.max_tokens == min(8, max_tokens or 8) and call.sampling.temperature == 0.7
            assert body["usage"]["prompt_tokens"] == len(call.prompt)
            if continued and start in fake_sequences:
                assert any(call.prompt[: len(before)] == before for before in fake_sequences[start])
            answer = body["choices"][0]["message"]
            answered[str(messages)] = body
            for kept in (answer, {k: v for k, v in answer.items() if k != "reasoning_content"}):
                reduced = {"role": "assistant", "content": kept.get("content") or "", **{k: kept[k] for k in kept if k not in ("role", "content")}}
                histories.append(messages + [reduced])
                fake_sequences.setdefault(str(messages + [reduced]), []).append(call.prompt + call.tokens)
        return trace_from_wire(await session.close())

    trace = asyncio.run(converse())
    wholes = sequences(trace)
    assert [[token for token, _ in whole] for whole in wholes] == [[*call.prompt, *call.tokens] for call in fake.calls]
    assert trace.n_sampled() == sum(len(call.tokens) for call in fake.calls)
    assert trace.n_calls == len(fake.calls) == len(wholes)
    for whole, call in zip(wholes, fake.calls):  # the last turn's mask; earlier turns' by the same rule in their own place
        assert [sampled for _, sampled in whole[len(call.prompt) :]] == [True] * len(call.tokens)
        assert not whole[len(call.prompt) - 1][1]
    for segment in trace.segments:
        assert len(segment.logprobs) == (len(segment.tokens) if segment.sampled else 0)


@given(st.lists(st.floats(max_value=0, allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
def test_the_wire_keeps_every_bit(logprobs):
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
def test_what_counts_as_the_same_message(sent, continues):
    tree = TokenTree()
    history = History([{"role": "user", "content": "go"}], None)
    turn = tree.add(
        None, [1], Completion((2,), (-0.1,), "stop", 0), history, {"role": "assistant", "content": "a", "reasoning_content": "r"}
    )
    messages = [*history.messages, {"role": "assistant", **sent}, {"role": "user", "content": "more"}]
    assert tree.find(History(messages, None)) is (turn if continues else None)
    assert tree.find(History(messages, [{"type": "function", "function": {}}])) is None  # other tools: another prompt
