"""Tool calls in the forms of several templates: read whole or left as text, whatever the policy writes."""

import asyncio
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from client.errors import ConfigError, InvalidRequest
from tests.policy_output import ARGUMENTS, NAMES, ODD_ARGUMENTS, TEXTS
from tests.trainer.conftest import THINKING
from trainer.engines.base import Sampling
from trainer.gateway.chat import completion_body, parse_chat_request
from trainer.gateway.render import Renderer
from trainer.gateway.session import GatewaySession

USER = {"role": "user", "content": "go"}
JSON_CALL = "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}"
XML_CALL = (
    "<function={{ c.function.name }}>\n"
    "{% for name, value in c.function.arguments | items %}<parameter={{ name }}>\n"
    "{{ value if value is string else value | tojson }}\n</parameter>\n{% endfor %}</function>"
)


def templated(tokenizer, template):
    """The tokenizer with another template."""
    other = tokenizer.__class__(tokenizer_object=tokenizer.backend_tokenizer, eos_token="<|im_end|>")
    other.chat_template = template
    return other


@pytest.fixture(scope="module")
def xml_tokenizer(thinking_tokenizer):
    """As Qwen3-Coder writes calls."""
    assert JSON_CALL in THINKING
    return templated(thinking_tokenizer, THINKING.replace(JSON_CALL, XML_CALL))


@pytest.fixture(scope="module")
def tools(bash_tool):
    types = {"command": {"type": "string"}, "lines": {"type": "integer"}, "any": {}}
    parameters = {"type": "object", "properties": types}
    return [{"type": "function", "function": {"name": "bash", "parameters": parameters}}]


def read(tokenizer, text, tools):
    """Content and calls (name, arguments) of a turn with this text."""
    renderer = Renderer(tokenizer)
    message = renderer.parse((*tokenizer.encode(text), renderer.end_of_turn), tools)
    calls = [call["function"] for call in message.get("tool_calls", [])]
    return message["content"], [(call["name"], json.loads(call["arguments"])) for call in calls]


def xml(command, more=""):
    return (
        f"<tool_call>\n<function=bash>\n<parameter=command>\n{command}\n</parameter>\n{more}</function>\n</tool_call>"
    )


def as_json(command):
    return f"<tool_call>\n{json.dumps({'name': 'bash', 'arguments': {'command': command}})}\n</tool_call>"


COMMANDS = [
    "ls",
    "grep '</tool_call>' f; grep '<tool_call>' f",
    "cat <<END\n\n  two\n</function>\n</parameter>\nEND",
    'echo "é\t🙂"',
    "echo '</think>'",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_call_of_either_form_is_read(thinking_tokenizer, xml_tokenizer, tools, command):
    for tokenizer, call in ((thinking_tokenizer, as_json(command)), (xml_tokenizer, xml(command))):
        text = f"<think>\nso\n</think>\n\nLooking.\n{call}"
        assert read(tokenizer, text, tools) == ("Looking.", [("bash", {"command": command})])
        assert read(tokenizer, text.removesuffix("\n</tool_call>"), tools)[1] == [("bash", {"command": command})]
        assert read(tokenizer, f"{text}\n{call}", tools)[1] == [("bash", {"command": command})] * 2


def test_values_of_the_xml_form_have_the_types_of_the_schema(xml_tokenizer, tools):
    more = "<parameter=lines>\n5\n</parameter>\n<parameter=any>\n5\n</parameter>\n<parameter=new>[]</parameter>"
    assert read(xml_tokenizer, xml("5", more), tools)[1] == [
        ("bash", {"command": "5", "lines": 5, "any": "5", "new": "[]"})
    ]


@pytest.mark.parametrize(
    "text",
    [
        xml("ls", "<parameter=lines>\nfive\n</parameter>\n"),
        xml("ls", "<parameter=command>\nrm\n</parameter>\n"),
        "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n",
        "<tool_call>\n<function=bash>\n<parameter=command>\nls",
        f"{xml('ls')}<tool_call>\n<function=",
        xml("ls").replace("</function>", "</function> and"),
        as_json("ls"),
    ],
    ids=["no number", "twice", "no end", "cut", "second cut", "more text", "other form"],
)
def test_a_malformed_call_of_the_xml_form_stays_text(xml_tokenizer, tools, text):
    assert read(xml_tokenizer, text, tools) == (text, [])


@pytest.mark.parametrize(
    "text",
    [
        as_json("ls")[:-25],
        f"{as_json('ls')}\n<tool_call>\n{{",
        as_json("ls").replace("</tool_call>", "and"),
        as_json("ls").replace("</tool_call>", as_json("ls")),
        as_json("echo \ud83d"),
        '<tool_call>{"name": "bash", "arguments": "\\ud83d"}</tool_call>',
        '<tool_call>{"name": "\\ud83d", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "bash", "arguments": {"command": NaN}}</tool_call>',
        '<tool_call>{"name": "bash", "arguments": {"command": 1e999}}</tool_call>',
        xml("ls"),
    ],
    ids=["cut", "second cut", "more text", "no end between", "half", "half text", "half name", "NaN", "huge", "other"],
)
def test_a_malformed_call_of_the_json_form_stays_text(thinking_tokenizer, tools, text):
    assert read(thinking_tokenizer, text, tools) == (text, [])


def test_a_form_that_cannot_be_read_is_refused_with_both_forms(thinking_tokenizer, chatml_tokenizer, tools):
    other = "[TOOL_CALLS]" + JSON_CALL
    foreign = Renderer(templated(thinking_tokenizer, THINKING.replace(JSON_CALL, other)))
    with pytest.raises(ConfigError) as refused:
        foreign.require_tool_calls()
    assert all(form in str(refused.value) for form in ('[TOOL_CALLS]{"name"', '{"name": "bash"', "<function=bash>"))
    for renderer in (foreign, Renderer(chatml_tokenizer)):
        with pytest.raises(InvalidRequest, match="<function=bash>") as request:
            renderer.prompt([USER], tools)
        assert request.value.field == "tools"
        assert renderer.prompt([USER]), "a text-based agent can use the model"
    for template in (THINKING, THINKING.replace(JSON_CALL, XML_CALL)):
        Renderer(templated(thinking_tokenizer, template)).require_tool_calls()


def test_a_history_that_a_template_fails_on_is_a_bad_request(xml_tokenizer, tools):
    called = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "no object"}}
    with pytest.raises(InvalidRequest, match=r"the chat template rejects them: TypeError") as refused:
        Renderer(xml_tokenizer).prompt([USER, {"role": "assistant", "content": "", "tool_calls": [called]}], tools)
    assert refused.value.field == "messages"


@pytest.mark.parametrize("text", [as_json("ls"), as_json("ls") + as_json("l")[:30]], ids=["whole call", "cut call"])
def test_a_turn_that_the_limit_cut_says_so(thinking_tokenizer, fake_generator, tools, text):
    renderer = Renderer(thinking_tokenizer)
    tokens = thinking_tokenizer.encode(text)

    def reason(end, limit):
        sampled = fake_generator(lambda _: [*tokens, *end]).generate(
            [1], Sampling(max_tokens=limit, stop_token_ids=end)
        )
        completion = asyncio.run(sampled)
        return completion_body("m", renderer.parse(completion.tokens, tools), completion, 1)["choices"][0]

    assert reason((), len(tokens))["finish_reason"] == "length"
    assert reason((renderer.end_of_turn,), 999)["finish_reason"] == ("tool_calls" if text == as_json("ls") else "stop")


def test_arguments_that_are_nested_too_deeply_are_a_bad_request():
    deep = json.loads("[" * 300 + "]" * 300)
    called = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": {"x": deep}}}
    with pytest.raises(InvalidRequest, match="may be nested 64 deep"):
        parse_chat_request({"messages": [USER, {"role": "assistant", "tool_calls": [called]}]})


PARTS = st.one_of(
    TEXTS,
    st.builds(
        lambda name, arguments: f'<tool_call>{{"name": {json.dumps(name)}, "arguments": {arguments}}}</tool_call>',
        NAMES, ARGUMENTS | ARGUMENTS.map(json.dumps),
    ),
    st.builds(lambda name, value: xml(value).replace("bash", name), NAMES, TEXTS | st.sampled_from(ODD_ARGUMENTS)),
    st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>", as_json("ls"), xml("ls")]),
)  # fmt: skip


@pytest.mark.parametrize("form", ["json", "xml"])
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(turns=st.lists(st.lists(PARTS, max_size=4).map("".join), min_size=1, max_size=3))
def test_any_turn_is_answered_and_continued(form, thinking_tokenizer, xml_tokenizer, fake_generator, tools, turns):
    """As with an agent that sends back what it got, through JSON, and answers every call."""
    tokenizer = thinking_tokenizer if form == "json" else xml_tokenizer
    renderer = Renderer(tokenizer)
    sampled = [tokenizer.encode(turn.encode(errors="replace").decode()) for turn in turns]
    fake = fake_generator(lambda _: [*sampled[len(fake.calls) - 1], renderer.end_of_turn])

    async def converse():
        session = GatewaySession("key", Sampling(max_tokens=10**6), renderer, fake, "model")
        messages = [USER]
        for _ in turns:
            body = await session.complete(parse_chat_request({"messages": messages, "tools": tools}))
            message = json.loads(json.dumps(body, ensure_ascii=False).encode())["choices"][0]["message"]
            results = [
                {"role": "tool", "content": "done", "tool_call_id": call["id"]}
                for call in message.get("tool_calls", [])
            ]
            messages = [*messages, message, *(results or [USER])]
        return await session.close()

    trace = asyncio.run(converse())
    assert trace["n_calls"] == len(turns)
    assert [segment["parent"] for segment in trace["segments"]] == list(range(-1, 2 * len(turns) - 1))
