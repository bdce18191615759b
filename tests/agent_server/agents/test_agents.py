"""Command agents inside the sandbox, and custom agents loaded by AGENT_SERVER_AGENT."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from tests.agent_server.api.test_bad_input import start as start_server
from tests.agent_server.conftest import FIX, GOOD_LINE, ROOT, ROW, eventually, launch, shut_down
from tests.agent_server.test_cancel import BOUND_S, cancel_and_measure
from tests.scripted_model import Hang, Refuse

# An agent that installs itself: sends the problem to the model, runs the answer with bash, and exits with its status.
PROGRAM = """
cat > /tmp/agent.py <<'END'
import json, os, subprocess, sys, urllib.request
problem = open(os.environ["PROBLEM_STATEMENT_FILE"]).read()
body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": problem}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
sys.exit(subprocess.run(["bash", "-c", answer.partition("```bash\\n")[2].rpartition("\\n```")[0]]).returncode)
END
python3 /tmp/agent.py"""


@pytest.fixture(scope="module")
def command_server(tmp_path_factory):
    running = launch(
        tmp_path_factory.mktemp("command") / "work",
        AGENT_SERVER_AGENT=f"sandbox: {PROGRAM}",
        AGENT_SERVER_AGENT_TIMEOUT_S="20",
    )
    yield running
    shut_down(running)


def test_a_program_in_the_sandbox_solves_the_task(command_server, model):
    view = command_server.run(model, [FIX], key="from inside")
    assert (view.status, view.reward, view.agent_exit_status, view.n_calls) == ("completed", 1.0, "Submitted", 1)
    assert f"+{GOOD_LINE}\n" in view.submission and "agent.py" not in view.submission
    assert model.requests["from inside"][0]["messages"] == [{"role": "user", "content": ROW["problem_statement"]}]
    assert "unused-value" not in model.requests
    assert {"agent", "commands", "model", "grading"} <= set(view.seconds)
    trajectory = json.loads((command_server.work_dir / "trajectories" / f"{view.session_id}.traj.json").read_text())
    info = trajectory["info"]
    assert (info["returncode"], info["model_stats"]["api_calls"], info["exit_status"]) == (0, 1, "Submitted")
    assert info["submission"] == view.submission and "from inside" not in json.dumps(trajectory)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("exit 3", "CommandFailed: 3"),
        ("sleep 100", "TimeExceeded"),
        (f"{FIX}\nkill -9 $PPID", "CommandFailed: 137"),
        ("yes", "SandboxLimitExceeded: output"),
    ],
    ids=["exit code", "time", "killed", "output"],
)
def test_other_endings_are_not_submissions(command_server, model, answer, status):
    view = command_server.run(model, [answer])
    assert (view.status, view.reward, view.agent_exit_status, view.submission) == ("completed", 0.0, status, "")


def refuse(status: int, code: str) -> Refuse:
    return Refuse(status, {"error": {"message": "no", "type": "x", "code": code}})


def test_model_failures_are_not_attributed_to_the_agent(command_server, model):
    view = command_server.run(model, [refuse(500, "x")])
    assert (view.status, view.reward, view.error["boundary"], view.error["code"]) == (
        "failed",
        None,
        "model",
        "model_error",
    )
    view = command_server.run(model, [], base_url="http://127.0.0.1:9")
    assert (view.status, view.reward, view.error["code"]) == ("failed", None, "model_unreachable")
    view = command_server.run(model, [refuse(400, "context_length_exceeded")])
    assert (view.status, view.reward, view.agent_exit_status, view.n_calls) == (
        "completed",
        0.0,
        "ContextWindowExceeded",
        0,
    )


@pytest.mark.parametrize(
    "step", [Hang(60.0), "(trap '' TERM; setsid sleep 1000) & trap '' TERM; sleep 1000"], ids=["model call", "command"]
)
def test_cancel_ends_the_session(command_server, model, step):
    key = f"cancelled in {step}"
    session = command_server.create(model, [step], key=key)
    eventually(lambda: key in model.requests, what="the model is asked")
    time.sleep(0.3)
    assert cancel_and_measure(command_server, session) < BOUND_S


def test_only_the_relay_is_reachable(own_server, model):
    """The program scans its sandbox and submits its findings as a new file."""
    key = "key-that-stays-outside"
    script = f"""
import json, os, socket, subprocess, urllib.error, urllib.request
base = os.environ["OPENAI_BASE_URL"]
def status(method, path, body=None):
    try:
        request = urllib.request.Request(base.removesuffix("/v1") + path, body, method=method)
        return urllib.request.urlopen(request, timeout=5).status
    except urllib.error.HTTPError as refused:
        return refused.code
def reachable(host, port):
    try:
        socket.create_connection((host, port), timeout=2).close()
        return True
    except OSError:
        return False
scan = "cat /proc/[0-9]*/environ; env; grep -rs 'key-that''-stays' /tmp /etc /root /dev/shm"
seen = subprocess.run(scan, shell=True, capture_output=True).stdout
others = [("GET", "/v1/chat/completions"), ("POST", "/v1/completions", b"{{}}"), ("POST", "/sessions", b"{{}}"),
    ("GET", "/healthz"), ("GET", "/v1/models/"), ("DELETE", "/v1/models"),
    ("POST", "/v1/chat/completions/../../healthz", b"{{}}")]
addresses = [("127.0.0.1", {model.url.rpartition(":")[2]}), ("127.0.0.1", SERVER), ("8.8.8.8", 53), ("10.0.0.1", 80)]
json.dump({{
    "models": status("GET", "/v1/models"),
    "others": [status(*call) for call in others],
    "reachable": [address for address in addresses if reachable(*address)],
    "key": ("key-that" + "-stays").encode() in seen,
    "api_key": os.environ["OPENAI_API_KEY"],
    "interfaces": os.listdir("/sys/class/net"),
}}, open("/testbed/found.json", "w"))
"""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    program = f"cat > /tmp/look.py <<'END'{script.replace('SERVER', port)}END\npython3 /tmp/look.py"
    server = own_server(AGENT_SERVER_AGENT=f"sandbox: {program}", AGENT_SERVER_PORT=port)
    view = server.run(model, [], key=key)
    (line,) = [line[1:] for line in view.submission.splitlines() if line.startswith("+{")]
    assert json.loads(line) == {
        "models": 200,
        "others": [404] * 7,
        "reachable": [],
        "key": False,
        "api_key": "unused-value",
        "interfaces": ["lo"],
    }
    assert view.n_calls == 0 and key not in model.requests


# --- custom agents ----------------------------------------------------------------------------------------------------


def test_a_custom_agent_works(own_server, model):
    server = own_server(AGENT_SERVER_AGENT="tests.agent_server.agents.custom_agent:CustomAgent")
    view = server.run(model, [FIX])
    assert (view.status, view.reward, view.agent_exit_status, view.n_calls) == ("completed", 1.0, "Done", 1)


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("minni", "must be mini, MODULE:CLASS, or"),
        ("no.such.module:Agent", "No module named 'no'"),
        ("json:NoSuchClass", "NoSuchClass"),
        ("tests.agent_server.agents.custom_agent:NotAnAgent", "must have `run("),
        ("tests.agent_server.agents.custom_agent:Unfit", "must have `run("),
        ("sandbox:", "names no command"),
    ],
)
def test_an_unusable_agent_is_refused_at_start(tmp_path, named, expected):
    result = start_server(tmp_path, AGENT_SERVER_AGENT=named)
    assert result.returncode == 2 and f"AGENT_SERVER_AGENT={named!r}" in result.stderr and expected in result.stderr, (
        result.stderr
    )
    assert "Traceback" not in result.stderr


def test_other_agents_do_not_import_mini(tmp_path):
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from agent_server.agents.registry import preload_agent\n"
        "from agent_server.config import Settings\n"
        "preload_agent(Settings(data_path=Path('.'), sif_dir=Path('.'), work_dir=Path('.'), agent='sandbox: true'))\n"
        "assert not {'litellm', 'minisweagent'} & set(sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
