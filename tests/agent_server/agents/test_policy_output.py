"""Whatever a policy writes is a format error or an observation: no session fails by it, in either protocol."""

import json
import re
import uuid
from itertools import chain

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_server.agents.base import ModelEndpoint
from agent_server.agents.mini import MiniAgent, load_config, preload
from agent_server.agents.sandbox_with_variables import SandboxWithVariables
from agent_server.sandboxes import apptainer
from agent_server.worker.submission import collect
from tests.agent_server.conftest import FIX, launch, shut_down
from tests.agent_server.grading.grading_bench import LIMITS
from tests.policy_output import ARGUMENTS, NAMES, ODD_ARGUMENTS, TEXTS, VALUES
from tests.scripted_model import SUBMIT, Refuse

PROTOCOLS = ["text", "tools"]
HALF = "\ud83d"  # of a surrogate pair
REPLACED = "\ufffd" * 3


def called(*arguments, name="bash"):
    """A message with one tool call for each of these arguments."""
    functions = [{"name": name, "arguments": each} for each in arguments]
    return {
        "content": None,
        "tool_calls": [{"id": f"c{i}", "type": "function", "function": f} for i, f in enumerate(functions)],
    }


def command(text):
    return json.dumps({"command": text})


# Some APIs parse the arguments that the model wrote, and answer with any JSON value in their place.
CALLS = st.builds(
    lambda names, arguments: [
        {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": each}}
        for i, (name, each) in enumerate(zip(names, arguments, strict=False))
    ],
    st.lists(NAMES | VALUES, min_size=3, max_size=3),
    st.lists(ARGUMENTS | VALUES, max_size=3),
)
COMMANDS = (TEXTS | st.sampled_from([HALF, "\0", "echo a", "exit 1"])).map(lambda text: f"```bash\n{text}\n```")
MESSAGES = st.fixed_dictionaries(
    {"content": st.none() | TEXTS | COMMANDS},
    optional={"tool_calls": CALLS, "reasoning_content": TEXTS | st.just(HALF)},
)
REPLIES = MESSAGES | (TEXTS | COMMANDS).map(lambda text: f"text:{text}")


@pytest.fixture(scope="module")
def sandbox(demo_image, tmp_path_factory):
    preload()
    scratch = tmp_path_factory.mktemp("scratch")
    sandbox = apptainer.start(demo_image, scratch=scratch, env={}, start_timeout_s=30, limits=LIMITS)
    yield sandbox
    sandbox.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(replies=st.lists(REPLIES, max_size=4))
def test_no_reply_of_a_model_fails_a_session(sandbox, model, tmp_path, protocol, replies):
    """The worker's own agent with mini-swe-agent, litellm, HTTP and a sandbox."""
    key = uuid.uuid4().hex
    model.scripts[key] = replies
    trajectory = tmp_path / "trajectory.json"
    result = MiniAgent(load_config(protocol)).run(
        "The function is wrong.", SandboxWithVariables(sandbox, {}), ModelEndpoint(model.url, key, 20.0),
        agent_timeout_s=60, command_timeout_s=10, trajectory=trajectory, seconds={},
    )  # fmt: skip
    assert result.exit_status in ("Submitted", "RepeatedFormatError", "LimitsExceeded")
    assert result.n_calls == len(model.requests.pop(key)) and key not in trajectory.read_text()
    collect(result, sandbox)


def test_the_regex_of_the_text_protocol_takes_linear_time():
    regex = load_config("text").model["action_regex"]
    for text in ("```bash\nls\n```", "so:\n```bash \t\r\n\n \nls\n\n```\nthen"):
        assert [found.strip() for found in re.findall(regex, text, re.DOTALL)] == ["ls"]
    assert re.findall(regex, f"```bash{10**6 * ' '}{10**6 * chr(10)}", re.DOTALL) == []  # else hours


def test_observations_name_what_is_wrong(sandbox, model, tmp_path):
    steps = [called(arguments) for arguments in ODD_ARGUMENTS[:5]] + [called(command("echo one"), '{"command": 5}')]
    model.scripts["observed"] = steps
    MiniAgent(load_config("tools")).run(
        "", SandboxWithVariables(sandbox, {}), ModelEndpoint(model.url, "observed", 20.0),
        agent_timeout_s=60, command_timeout_s=10, trajectory=tmp_path / "t.json", seconds={},
    )  # fmt: skip
    seen = [m["content"] for m in model.requests["observed"][-1]["messages"] if m["role"] == "tool"]
    expected = ["not NoneType", "not list", "not int", "a NUL byte", "half a surrogate pair", "one\n", "not int"]
    assert all(part in text for part, text in zip(expected, seen, strict=True)), seen


def test_arguments_of_any_depth_and_length_are_read_at_once(sandbox, model, tmp_path):
    """A try more is a retry, of which the policy could use up all."""
    steps = [called(f'{{"command": {"[" * depth}{"]" * depth}}}') for depth in (60, 70, 250, 400, 800, 950, 990, 9999)]
    steps += [called(f'{{"command": {"9" * digits}}}') for digits in (20, 4300, 4301)] + [called("9" * 5000)]
    key = "deep"
    model.scripts[key] = list(chain.from_iterable((step, "echo next") for step in steps))
    trajectory = tmp_path / "t.json"
    result = MiniAgent(load_config("tools")).run(
        "", SandboxWithVariables(sandbox, {}), ModelEndpoint(model.url, key, 20.0),
        agent_timeout_s=60, command_timeout_s=10, trajectory=trajectory, seconds={},
    )  # fmt: skip
    assert result.exit_status == "Submitted" and json.loads(trajectory.read_text())["messages"]
    assert result.n_calls == len(model.requests[key]) == 2 * len(steps) + 1


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    running = {
        protocol: launch(tmp_path_factory.mktemp(protocol) / "work", AGENT_SERVER_AGENT_CONFIG=protocol)
        for protocol in PROTOCOLS
    }
    yield running
    shut_down(*running.values())


def test_a_session_goes_on_after_malformed_calls(servers, model):
    """Each is followed by a good call, or three format errors in a row would end the session."""
    odd = [
        *(called(arguments) for arguments in ODD_ARGUMENTS),
        called(f'{{"command": "{HALF}"}}'),
        called(command("echo good"), '{"command": null}'),
        called(command("echo good"), "no JSON"),
        called(["ls"]),
        called(5),
        called(None),
        called(command("ls"), name=HALF),
        called(command("ls"), name=None),
        {"content": HALF},
    ]
    script = list(chain.from_iterable((step, "echo next") for step in odd))
    view = servers["tools"].run(model, [*script, FIX])
    assert (view.status, view.reward, view.agent_exit_status) == ("completed", 1.0, "Submitted"), view
    assert view.n_calls == len(script) + 2


@pytest.mark.parametrize(
    "step",
    [f"text:{HALF}", f"text:```bash\necho {HALF}\n```", "echo a\0b", called('{"command": "ls"}'), called(5)],
    ids=["half", "half in a command", "NUL", "tool call", "tool call without text"],
)
def test_a_text_session_goes_on_too(servers, model, step):
    view = servers["text"].run(model, [step, step, FIX])
    assert (view.status, view.reward, view.agent_exit_status) == ("completed", 1.0, "Submitted"), view


VLLM = {
    "message": "You passed 1025 input tokens and requested 1 output tokens. However, the model's context length is only"
    " 1024 tokens, resulting in a maximum input length of 1023 tokens.",
    "type": "BadRequestError",
    "param": "input_tokens",
    "code": 400,
}
UNKNOWN = {"message": "rate limits of wisdom", "type": "invalid_request_error", "code": "odd"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("error", "status", "ending"),
    [
        (VLLM, 400, "ContextWindowExceeded"),
        ({"message": "no", "code": "context_length_exceeded"}, 400, "ContextWindowExceeded"),
        (UNKNOWN | {"message": "no"}, 400, "ConversationRefused"),
        (UNKNOWN | {"message": "no"}, 422, "ConversationRefused"),
    ],
)
def test_a_refused_conversation_is_the_agents_ending(servers, model, protocol, error, status, ending):
    key = uuid.uuid4().hex
    view = servers[protocol].run(model, [FIX, Refuse(status, {"error": error})], key=key)
    assert (view.status, view.reward, view.agent_exit_status, view.n_calls) == ("completed", 0.0, ending, 1)
    assert len(model.requests[key]) == 2, "a refusal is not asked for again"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_refusal_of_the_first_request_is_a_failure(servers, model, protocol):
    key = uuid.uuid4().hex
    view = servers[protocol].run(model, [Refuse(400, {"error": UNKNOWN | {"message": "no"}})], key=key)
    assert (view.status, view.reward, view.error["code"]) == ("failed", None, "model_error")
    assert len(model.requests[key]) == 1


def test_an_agent_of_ones_own_may_pass_on_what_the_policy_writes(own_server, model):
    """A command that no bash can get, and texts that no record can hold."""
    server = own_server(AGENT_SERVER_AGENT="tests.agent_server.agents.custom_agent:EchoingAgent")
    view = server.run(model, [{"content": f"a {HALF}"}])
    assert (view.status, view.reward) == ("completed", 0.0)
    assert (view.agent_exit_status, view.submission) == (f"Done: 1 a {REPLACED}", f"a {REPLACED}")
    assert server.run(model, [{"content": "a\0b"}]).agent_exit_status == "Done: 1 a\0b"


def test_a_program_in_the_sandbox_cannot_fail_its_session(own_server, model):
    """The policy's commands can reach the relay as well, with any body."""
    program = """python3 - <<'END'
import json, os, urllib.error, urllib.request
for body in (b'{"messages": []}', b'{}'):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
    try:
        print(urllib.request.urlopen(request).status)
    except urllib.error.HTTPError as refused:
        print(refused.code)
END
exit 3"""
    server = own_server(AGENT_SERVER_AGENT=f"sandbox: {program}")
    view = server.run(model, [SUBMIT, Refuse(400, {"error": UNKNOWN})])
    assert (view.status, view.reward, view.agent_exit_status) == ("completed", 0.0, "ConversationRefused")
