"""Sessions from request to reward: gunicorn, fork server, mini-swe-agent, Apptainer, SQLite; a scripted model."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.agent_server.conftest import FILE, FIX, GOOD_LINE, ROW, TASK, TEST_FILE, WRONG, launch, shut_down
from tests.scripted_model import SUBMIT, Refuse


@pytest.fixture(scope="module")
def tools_server(tmp_path_factory):
    running = launch(tmp_path_factory.mktemp("tools") / "work", AGENT_SERVER_AGENT_CONFIG="tools")
    yield running
    shut_down(running)


def test_a_right_patch_is_rewarded(server, model):
    view = server.run(model, [f"cat {FILE}", FIX])
    assert (view.status, view.reward, view.exit_code, view.agent_exit_status, view.n_calls) == (
        "completed",
        1.0,
        0,
        "Submitted",
        3,
    )
    assert f"+{GOOD_LINE}\n" in view.submission
    assert set(view.grade["tests"].values()) == {"PASSED"}
    assert {"sandbox_start", "agent", "commands", "model", "grading"} <= set(view.seconds)


def test_a_wrong_patch_is_not(server, model):
    view = server.run(model, [WRONG])
    assert (view.status, view.reward, view.grade["status"]) == ("completed", 0.0, "graded")
    assert "PASSED" not in view.grade["tests"].values()


def test_edits_without_a_submission_are_not_graded(server, model):
    view = server.run(model, [FIX, "ls", "ls", "ls", "ls"])
    assert (view.status, view.reward, view.agent_exit_status, view.submission) == (
        "completed",
        0.0,
        "LimitsExceeded",
        "",
    )
    assert view.grade["status"] == "no_submission"


def test_submitting_no_change_is_not_graded(server, model):
    view = server.run(model, [])
    assert (view.reward, view.agent_exit_status, view.grade["status"]) == (0.0, "Submitted", "no_submission")


def test_a_patch_in_the_submission_itself_is_graded(server, model):
    view = server.run(model, [f"{FIX}\ngit diff > /tmp/p", f"{SUBMIT} && cat /tmp/p"])
    assert (view.reward, view.agent_exit_status) == (1.0, "Submitted")


def test_a_patch_that_does_not_apply_scores_zero(server, model):
    view = server.run(model, [f"{SUBMIT}; printf -- '--- a/none.py\\n+++ b/none.py\\n@@ -1 +1 @@\\n-x\\n+y\\n'"])
    assert (view.status, view.reward, view.grade["status"]) == ("completed", 0.0, "patch_failed")


def test_the_agent_cannot_win_by_rewriting_the_tests(server, model):
    tests = "".join(f"def {test.split('::')[1]}(): pass\n" for test in ROW["FAIL_TO_PASS"] + ROW["PASS_TO_PASS"])
    cheat = f"mkdir -p tests && cat > {TEST_FILE} <<'END'\n{tests}END"
    view = server.run(model, [cheat])
    assert view.reward == 0.0


def test_the_fix_is_not_in_the_agents_history(server, model):
    probe = (
        f"git log --all --oneline | wc -l; git reflog | wc -l; ls {TEST_FILE}; "
        f"git rev-list --objects --all -- {FILE} | wc -l; git show HEAD:{FILE} | grep -cF '{GOOD_LINE}'"
    )
    server.run(model, [probe], key="history")
    seen = model.requests["history"][1]["messages"][-1]["content"]
    assert f"<output>\n1\n0\nls: cannot access '{TEST_FILE}': No such file or directory\n3\n0\n" in seen, seen


def test_repeated_format_errors_keep_their_exit_status(server, model):
    view = server.run(model, ["text:no command", "text:still none", "text:and again"], key="format")
    assert (view.status, view.reward, view.agent_exit_status) == ("completed", 0.0, "RepeatedFormatError")
    assert model.requests["format"][1]["messages"][-1] == {
        "role": "user",
        "content": "Answer with exactly one ```bash block.",
    }


def test_a_context_overflow_is_the_agents_ending(server, model):
    overflow = Refuse(
        400,
        {
            "error": {
                "message": "the prompt is too long",
                "type": "invalid_request_error",
                "code": "context_length_exceeded",
            }
        },
    )
    view = server.run(model, [FIX, overflow])
    assert (view.status, view.reward, view.agent_exit_status) == ("completed", 0.0, "ContextWindowExceeded")


@pytest.mark.parametrize(
    ("status", "code"), [(401, "model_error"), (409, "model_error")], ids=["unknown key", "session over"]
)
def test_a_refusing_model_is_a_failure_not_a_zero(server, model, status, code):
    refuse = Refuse(status, {"error": {"message": "no", "type": "x", "code": "x"}})
    view = server.run(model, [refuse] * 4)
    assert (view.status, view.reward, view.exit_code) == ("failed", None, 1)
    assert (view.error["boundary"], view.error["code"]) == ("model", code)


def test_an_unreachable_model_is_a_failure(server, model):
    view = server.run(model, [], base_url="http://127.0.0.1:9")
    assert (view.status, view.reward, view.error["code"]) == ("failed", None, "model_unreachable")


def test_tool_calls_work_too(tools_server, model):
    view = tools_server.run(model, [f"cat {FILE}", FIX], key="tools")
    assert (view.reward, view.agent_exit_status, view.n_calls) == (1.0, "Submitted", 3)
    assert model.requests["tools"][1]["messages"][-1]["role"] == "tool"


def test_the_key_never_enters_the_sandbox(server, model):
    server.run(
        model, ["env; cat /proc/*/environ | tr '\\0' '\\n'; ls /proc; ls -d /work /root/* 2>&1"], key="secret-key"
    )
    assert "secret-key" not in json.dumps(model.requests["secret-key"][1]["messages"])


def test_the_samples_of_a_group_share_a_row(server, model):
    views = [server.run(model, [], task_id=None, group_id="one group") for _ in range(2)]
    assert views[0].task_id == views[1].task_id
    other = server.run(model, [], task_id=None, group_id="another group")
    assert other.task_id != views[0].task_id


def test_a_repeated_create_is_the_same_session(server, model):
    first = server.create(model, [], key="twice")
    assert server.create(model, [], key="twice") == first
    view = server.client.wait(first, timeout_s=60)
    assert server.client.get(first) == view and server.create(model, [], key="twice") == first


def test_the_trajectory_is_on_disk(server, model):
    view = server.run(model, [FIX], key="trajectory-key")
    text = (server.work_dir / "trajectories" / f"{view.session_id}.traj.json").read_text()
    info = json.loads(text)["info"]
    assert (info["exit_status"], info["submission"]) == ("Submitted", view.submission) and view.task_id == TASK
    assert f"+{GOOD_LINE}\n" in info["submission"], "the repository's diff, which the agent itself did not print"
    assert "trajectory-key" not in text


INSPECT = """
import sys
from minisweagent.run.utilities import inspector

def show(self):  # in place of the terminal
    for number, path in enumerate(self.trajectory_files):
        self._i_trajectory = number
        self._load_current_trajectory()
        print(path.name, self.n_steps, self.steps[-1][-1]["role"])

inspector.TrajectoryInspector.run = show
inspector.main(sys.argv[1])
"""


def test_the_inspector_of_mini_swe_agent_finds_the_trajectories(server, model, tmp_path):
    sessions = [server.run(model, script).session_id for script in ([f"cat {FILE}", FIX], [WRONG])]
    folder = tmp_path / "trajectories"
    folder.mkdir()
    for session in sessions:
        shutil.copy(server.work_dir / "trajectories" / f"{session}.traj.json", folder)
    environment = os.environ | {"MSWEA_SILENT_STARTUP": "1", "MSWEA_GLOBAL_CONFIG_DIR": str(tmp_path / "config")}
    command = [sys.executable, "-c", INSPECT, str(folder)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    expected = {f"{sessions[0]}.traj.json 4 exit", f"{sessions[1]}.traj.json 3 exit"}
    assert set(ran.stdout.splitlines()) == expected, ran.stderr
