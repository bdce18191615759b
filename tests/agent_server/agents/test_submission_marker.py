"""The submission marker of mini-swe-agent: what ends a session, and what of the output is the submission."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_server.agents.command_outputs import CommandOutputs
from agent_server.agents.mini import EnvironmentConfig, SandboxEnvironment, preload
from agent_server.agents.sandbox_with_variables import SandboxWithVariables
from agent_server.agents.submission_marker import LINE_ENDS, find_submission
from agent_server.grading.patches import is_patch
from agent_server.sandboxes import apptainer, shell_output
from agent_server.sandboxes.base import CommandResult
from tests.agent_server.grading.grading_bench import LIMITS, PATCH
from tests.scripted_model import SUBMIT

MARKER = SUBMIT.removeprefix("echo ")
NOISE = "some line\n"
NO_PATCH = "I have fixed it.\n"


def submitted(command, output, startup=""):
    return find_submission(command, CommandResult(startup + output, 0, 0.1, startup=startup))


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (f"{MARKER}\n", ""),
        (MARKER, ""),
        (f"\n  {MARKER} \r\n", ""),
        (f"{MARKER}\n{PATCH}", PATCH),
        (f"{MARKER}\n\n{NOISE}{PATCH}{NOISE}", f"\n{NOISE}{PATCH}{NOISE}"),
        (f"{MARKER}\n{NO_PATCH}", ""),
        (f"{MARKER}\n{MARKER}\n{NOISE}", ""),
        (f"{NOISE}{MARKER}\n{PATCH}", None),
        (f"x{MARKER}\n", None),
        (f"{MARKER} x\n", None),
        ("", None),
    ],
)
def test_the_rule_for_what_a_command_prints(output, found):
    assert submitted("bash submit.sh", output) == found
    # What comes before the command began is not the command's.
    assert submitted("bash submit.sh", output, startup=f"{NOISE}{NOISE}") == found
    assert submitted("bash submit.sh", output, startup=f"{MARKER}\n") == found


def by_lines(command, output):
    """The rule with the output's lines as a list, which takes many times its memory."""
    lines = output.lstrip().splitlines(keepends=True)
    markers = [number for number, line in enumerate(lines) if line.strip() == MARKER]
    if not markers or (markers[0] > 0 and command != SUBMIT):
        return None
    rest = "".join(lines[markers[0] + 1 :])
    return rest if is_patch(rest) else ""


@given(
    st.sampled_from([SUBMIT, "bash submit.sh"]),
    st.lists(st.sampled_from([MARKER, "x", " ", "\t", *LINE_ENDS, "\r\n", "\x1f", "\xa0", "@@ hunk"]), max_size=8),
)
def test_lines_are_those_of_splitlines(command, parts):
    output = "".join(parts)
    assert submitted(command, output) == by_lines(command, output)


@pytest.mark.parametrize(
    "command", [SUBMIT, f"  {SUBMIT}\n", f"echo '{MARKER}' && cat p", f'echo "{MARKER}"; cat p', f"{SUBMIT}\ncat p"]
)
def test_nothing_of_a_command_comes_before_the_marker_that_it_begins_with(command):
    assert submitted(command, f"+ echo {MARKER}\n{MARKER}\n{PATCH}") == PATCH
    assert submitted(command, f"{NOISE}{MARKER}\n{NOISE}") == ""


@pytest.mark.parametrize("command", [f"cat notes; {SUBMIT}", f"grep -h {MARKER} notes", f"{SUBMIT}x", "cat notes"])
def test_a_marker_among_other_lines_of_a_command_is_no_submission(command):
    assert submitted(command, f"{NOISE}{MARKER}\n") is None


@pytest.fixture(scope="module", autouse=True)
def mini():
    preload()


@pytest.fixture
def environment(tmp_path, demo_image):
    """A factory of mini-swe-agent's environment in a sandbox with these variables and this /root/.bashrc."""
    opened = []

    def environment(bashrc="", **env):
        sandbox = apptainer.start(demo_image, scratch=tmp_path, env=env, start_timeout_s=30, limits=LIMITS)
        opened.append(sandbox)
        sandbox.write_file("/root/.bashrc", bashrc)
        sandbox.write_file("/tmp/p", PATCH)
        of_agent, outputs = SandboxWithVariables(sandbox, {"PAGER": "cat"}), CommandOutputs(tmp_path / "session.json")
        return SandboxEnvironment(of_agent, EnvironmentConfig(cwd="/tmp"), 10.0, outputs)

    yield environment
    for sandbox in opened:
        sandbox.close()


def submission_of(environment, command):
    from minisweagent.exceptions import Submitted

    with pytest.raises(Submitted) as raised:
        environment.execute({"command": command})
    return raised.value.messages[0]["extra"]["submission"]


@pytest.mark.parametrize(
    ("bashrc", "env"),
    [
        ("", {}),
        ("echo noise; echo noise >&2\n", {}),
        ("printf 'no end of line'\n", {}),
        ("set -x\n", {}),
        ("trap 'echo about to run' DEBUG\n", {}),
        ("trap 'echo at the end' EXIT\n", {}),
        ("(while :; do echo noise; done) & disown\n", {}),
        ("", {"LC_ALL": "xx_XX.UTF-8"}),
        ("export LC_ALL=xx_XX.UTF-8\n", {}),
        ("", {"PROMPT_COMMAND": "echo noise", "ENV": "/root/.bashrc"}),
        ("echo noise\n", {"SHELLOPTS": "verbose:xtrace"}),
        ("", {"POSIXLY_CORRECT": "1", "LC_ALL": "xx_XX.UTF-8"}),
    ],
)
def test_the_marker_is_found_whatever_the_environment_prints(environment, bashrc, env):
    agent = environment(bashrc, **env)
    assert agent.execute({"command": "echo hello"})["output"].endswith(("hello\n", "at the end\n"))
    assert PATCH in submission_of(agent, f"{SUBMIT} && cat /tmp/p")
    assert submission_of(agent, SUBMIT) == ""


def test_the_marker_is_found_beside_a_background_writer(environment):
    agent = environment()
    agent.execute({"command": "(while :; do echo noise; echo noise >&2; done) &"})
    for _ in range(3):
        assert agent.execute({"command": "echo hello; sleep 0.05"})["output"] == "hello\n"
        assert submission_of(agent, f"printf '{MARKER}\\n'; cat /tmp/p") == PATCH
    agent.execute({"command": "(while :; do echo noise; done) & sleep 0.1"})
    assert submission_of(agent, SUBMIT) == ""


def test_a_patch_whose_output_is_cut_is_no_submission(environment, monkeypatch):
    monkeypatch.setattr(shell_output, "OUTPUT_LIMIT_BYTES", 1000)
    agent = environment()
    for _ in range(3):
        observed = agent.execute({"command": f"{SUBMIT} && cat /tmp/p && head -c 3000 /dev/zero | tr '\\0' '#'"})
        assert (observed["returncode"], "printed too much" in observed["exception_info"]) == (137, True)


def test_a_command_that_fails_is_no_submission(environment):
    assert environment().execute({"command": f"{SUBMIT}; exit 1"})["returncode"] == 1


def test_a_command_that_cannot_be_run_is_observed_with_its_reason(environment):
    observed = environment().execute({"command": "echo \0"})
    assert observed["returncode"] == 1 and "NUL" in observed["output"] and observed["exception_info"] == ""


def test_a_limit_without_a_note_of_its_own_is_named(environment):
    assert environment()._limit_note("sockets").endswith("at the sandbox's limit of sockets")
