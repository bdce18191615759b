"""Settings of grading that reach the session: modes, penalties, policy, the same sandbox, binds, commands."""

import json

import pytest

from tests.agent_server.conftest import FIX, WRONG


def test_a_server_with_every_setting(own_server, model, tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "x.whl").write_text("a wheel")
    server = own_server(
        AGENT_SERVER_REWARD="test_ratio",
        AGENT_SERVER_PENALTIES="RepeatedFormatError=-0.25",
        AGENT_SERVER_GRADING_SANDBOX="same",
        AGENT_SERVER_BINDS=f"{wheels}:/wheels",
        AGENT_SERVER_SETUP_COMMAND="cp /wheels/x.whl /usr/local/x.whl; echo made >made.txt",
    )
    probe = "cat /usr/local/x.whl; touch /wheels/y || echo read-only; git status --porcelain"
    good = server.run(model, [probe, FIX, "echo left >/usr/local/left"], key="probe")
    assert (good.reward, good.grade["resolved"], good.grade["policy"]) == (1.0, True, "strip")
    seen = model.requests["probe"][1]["messages"][-1]["content"]
    assert "a wheel" in seen and "read-only" in seen and "made.txt" not in seen
    assert "sandbox_start" in good.seconds and "setup_command" in good.seconds and good.cpu_seconds.get("tests") is None
    wrong = server.run(model, [WRONG])
    assert not wrong.grade["resolved"] and wrong.reward == 0.0
    half = server.run(model, ["echo '# nothing' >notes.txt"])
    passed = sum(outcome == "PASSED" for outcome in half.grade["tests"].values())
    assert half.reward == pytest.approx(passed / len(half.grade["tests"])) and 0 < half.reward < 1
    assert server.run(model, ["text:no command", "text:still none", "text:and again"]).reward == -0.25
    logged = (server.work_dir / "logs" / f"{good.session_id}.tests.log").read_text()
    assert good.grade["log_path"].endswith(f"{good.session_id}.tests.log") and "passed" in logged


def test_a_reward_command_of_the_server(own_server, model):
    server = own_server(
        AGENT_SERVER_REWARD_COMMAND="git diff --quiet HEAD; echo 0.75", AGENT_SERVER_PROTECTED_PATHS="reject"
    )
    view = server.run(model, [FIX])
    assert (view.reward, view.grade["resolved"], view.grade["given_reward"]) == (0.75, False, 0.75)
    rejected = server.run(model, [FIX, "echo >conftest.py"])
    assert (rejected.reward, rejected.grade["status"], rejected.grade["touched"]) == (
        0.0,
        "rejected",
        ["./conftest.py"],
    )


@pytest.mark.parametrize("placement", ["fresh", "same"])
def test_variables_of_the_agent_are_not_those_of_the_tests(own_server, model, placement):
    names = "{'PAGER', 'GIT_PAGER', 'PYTHONDONTWRITEBYTECODE', 'BASH_ENV', 'SANDBOX_STARTUP', 'PYTEST_ADDOPTS'}"
    server = own_server(
        AGENT_SERVER_REWARD_COMMAND=f'python3 -c "import os; print(float(not {names} & set(os.environ)))"',
        AGENT_SERVER_GRADING_SANDBOX=placement,
    )
    view = server.run(model, ["echo $PAGER $GIT_PAGER $BASH_ENV", FIX], key=f"variables {placement}")
    seen = model.requests[f"variables {placement}"][1]["messages"][-1]["content"]
    assert view.reward == 1.0 and "\ncat cat /root/.bashrc\n" in seen


def test_a_setup_command_that_fails_is_no_session(own_server, model):
    server = own_server(AGENT_SERVER_SETUP_COMMAND="echo no such wheel; exit 3")
    view = server.run(model, [FIX])
    assert (view.status, view.error["code"], view.reward) == ("failed", "sandbox_start", None)
    assert "AGENT_SERVER_SETUP_COMMAND must end with 0; it ended with 3: no such wheel" in view.error["message"]
    events = [json.loads(line) for line in (server.work_dir / "events.jsonl").read_text().splitlines()]
    assert sum(event["name"] == "retried" for event in events) == 2
