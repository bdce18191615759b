"""`python -m agent_server validate` on a task of each dataset's format, and on the demo's."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

from agent_server.validate import hostile
from tests.agent_server.conftest import DEMO, ROOT, eventually
from tests.agent_server.grading import sample_rows_by_commands as by_commands
from tests.agent_server.grading import sample_rows_by_runner as by_runner
from tests.agent_server.grading.awkward.environments import environments
from tests.agent_server.grading.sample_images import Images
from tests.agent_server.grading.sample_rows import Made

pytestmark = pytest.mark.slow
SAMPLE_NAMES = ("r2e_a", "r2e_b", "swebench_new", "swebench_old", "swesmith", "eval_script")
ROWS = (*SAMPLE_NAMES, *(make.__name__ for make in (*by_commands.ALL, *by_runner.ALL)))
# Their datasets believe what is printed, and say so: every attack that prints may win, so some of them show it.
BELIEVE_PRINTED = {"swerebench_v2_other", "swebench_live_other", "swebench_pro", "swebench_multilingual"}
SOME_ATTACKS = (*hostile.NAMES[:3], *[name for name in hostile.NAMES if hostile.prints(name)][:3])
# Attacks that mean nothing for a sample row: none has SymPy's runner, some show the agent no tests or no scripts.
NOT_FOR_ALL = {"patch SymPy's reporter", hostile.DELETE_TESTS, hostile.REPLACE_TESTS, hostile.REPLACE_SCRIPTS}
ONE_ATTACK = ("--attacks", "exit at import")


def run_validate(*arguments: object, report: Path, **settings: str) -> tuple[subprocess.CompletedProcess, dict]:
    command = [sys.executable, "-m", "agent_server", "validate", *map(str, arguments), "--report", str(report)]
    environment = os.environ | settings
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    return ran, json.loads(report.read_text()) if report.exists() else {}


@pytest.fixture(scope="session")
def all_rows(sample_rows, tmp_path_factory) -> tuple[Path, dict[str, Made]]:
    """The images' folder, and a task of every format and runner by the name of its file."""
    images, made = sample_rows
    folder, maker = tmp_path_factory.mktemp("rows"), Images(images.parent / "root", images)
    rows = [make(maker, folder) for make in by_commands.ALL]
    rows += [make(maker, folder, environments(DEMO.parent)) for make in by_runner.ALL]
    return images, made | {row.path.stem: row for row in rows}


@pytest.fixture(scope="session")
def v2_parsers(tmp_path_factory) -> Path:
    """A folder for the path, with the parsers of SWE-rebench V2's repository."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "lib/agent").mkdir(parents=True)
    (folder / "lib/agent/log_parsers.py").write_text(by_commands.CHECK_PARSER)
    return folder


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(f"row {name}")) for name in ROWS])
def test_gold_is_one_and_empty_and_hostile_are_zero(all_rows, v2_parsers, tmp_path, name):
    images, made = all_rows
    attacks = SOME_ATTACKS if name in BELIEVE_PRINTED else hostile.NAMES
    options = ("--tasks", made[name].path, "--images", images, "--jobs", 1, "--timeout-s", 20, "--attacks", *attacks)
    ran, report = run_validate(*options, report=tmp_path / "validate.json", PYTHONPATH=str(v2_parsers))
    cases, text = report["cases"], ran.stdout + ran.stderr
    assert list(cases) == ["gold", "empty", *attacks], text
    assert all(line["no_grade"] == 0 for line in cases.values())
    not_made = {case for case, line in cases.items() if not line["graded"]}
    assert not_made == report["not_applicable"].keys() <= NOT_FOR_ALL
    resolved = {case for case, line in cases.items() if line["resolved"]}
    if name in BELIEVE_PRINTED:
        assert ran.returncode == 1 and {"gold", "print and exit at import"} <= resolved and "empty" not in resolved, (
            text
        )
    else:
        assert ran.returncode == 0 and resolved == {"gold"}, text


def test_a_row_that_cannot_be_trusted_is_named_and_excluded(sample_rows, tmp_path, own_server):
    images, made = sample_rows
    good = json.loads(made["swesmith"].path.read_text())
    bad = good | {
        "instance_id": "mewwts__addict.75284f95.never__1",
        "FAIL_TO_PASS": ["tests/test_total.py::test_that_is_not_there"],
    }
    rows, report = tmp_path / "rows.jsonl", tmp_path / "validate.json"
    rows.write_text(f"{json.dumps(good)}\n{json.dumps(bad)}\n")
    ran, found = run_validate("--tasks", rows, "--images", images, "--jobs", 1, *ONE_ATTACK, report=report)
    assert ran.returncode == 1 and found["excluded"] == [bad["instance_id"]] and found["rows"] == 2
    assert (
        f"{bad['instance_id']}: gold: not resolved (graded), not passed: tests/test_total.py::test_that_is_not_there"
        in ran.stdout
    )
    server = own_server(R2E_DATA_PATH=str(rows), R2E_SIF_DIR=str(images), AGENT_SERVER_EXCLUDE=str(report))
    assert requests.get(f"{server.url}/tasks", timeout=10).json()["train"] == [good["instance_id"]]


def test_rows_that_cannot_be_graded_are_left_out_where_told_so(sample_rows, tmp_path):
    images, made = sample_rows
    row = json.loads(made["eval_script"].path.read_text())
    bad = row | {"instance_id": "calc-own-9", "problem_statement": ""}
    rows, report = tmp_path / "rows.jsonl", tmp_path / "validate.json"
    rows.write_text(f"{json.dumps(bad)}\n{json.dumps(row)}\n")
    options = ("--tasks", rows, "--images", images, "--jobs", 1, "--attacks", "exit at import")
    ran, _ = run_validate(*options, report=report)
    assert ran.returncode == 2 and "set AGENT_SERVER_UNUSABLE_ROWS=skip" in ran.stderr
    ran, found = run_validate(*options, "--unusable-rows", "skip", report=report)
    assert ran.returncode == 0 and found["rows"] == 1, ran.stdout + ran.stderr
    assert f"1 rows are left out; {report}.unusable has the reasons" in ran.stdout
    (line,) = (tmp_path / "validate.json.unusable").read_text().splitlines()
    assert json.loads(line) == {"file": "rows.jsonl", "row": "calc-own-9", "reason": "its problem_statement is empty"}


def test_a_limit_that_is_too_small_for_gold_is_named(sample_rows, tmp_path):
    """Its rows are excluded, in a category of their own. The limits are the server's."""
    images, made = sample_rows
    row = json.loads(made["eval_script"].path.read_text())
    many = row | {"eval_script": f"for i in $(seq 30); do sleep 0.5 & done; wait\n{row['eval_script']}"}
    slow = row | {"instance_id": "calc-own-2", "eval_script": f"sleep 100\n{row['eval_script']}"}
    wrong = row | {"instance_id": "calc-own-3", "eval_script": "false"}
    rows, report = tmp_path / "rows.jsonl", tmp_path / "validate.json"
    rows.write_text("".join(json.dumps(row) + "\n" for row in (many, slow, wrong)))
    options = ("--tasks", rows, "--images", images, "--jobs", 1, *ONE_ATTACK, "--timeout-s", 5)
    ran, found = run_validate(*options, report=report, AGENT_SERVER_SANDBOX_PROCESSES="16")
    small = {"calc-own-1": "processes (AGENT_SERVER_SANDBOX_PROCESSES=16)",
             "calc-own-2": "time (AGENT_SERVER_GRADING_TIMEOUT_S=5)"}  # fmt: skip
    assert ran.returncode == 1 and found["small_limits"] == small
    assert found["excluded"] == ["calc-own-1", "calc-own-2", "calc-own-3"]
    for task_id, limit in small.items():
        assert f"  {task_id}: gold: limit too small for this row: {limit}\n" in ran.stdout
    assert "  calc-own-3: gold: not resolved (graded), not passed: eval_script\n" in ran.stdout
    assert "0 of 3 rows can be trusted, 2 need a larger limit, 0 are flaky" in ran.stdout
    # With a larger limit, the row is graded again and trusted.
    ran, found = run_validate(*options, "--ids", "calc-own-1", report=report, AGENT_SERVER_SANDBOX_PROCESSES="200")
    assert ran.returncode == 0 and "1 of 1 rows can be trusted" in ran.stdout and found["small_limits"] == {}


def test_attacks_that_cannot_be_made_are_reported(sample_rows, tmp_path):
    """The gold patch changes no Python file."""
    images, made = sample_rows
    row = json.loads(made["eval_script"].path.read_text())
    row |= {
        "eval_script": "grep -q changed README.md",
        "patch": "--- a/README.md\n+++ b/README.md\n@@ -1 +1 @@\n-calc\n+changed\n",
    }
    rows, report = tmp_path / "rows.jsonl", tmp_path / "validate.json"
    rows.write_text(json.dumps(row) + "\n")
    options = ("--tasks", rows, "--images", images, "--jobs", 1, "--attacks", "exit at import", "xfail in the function")
    ran, found = run_validate(*options, report=report)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    reason = "the gold patch changes no Python file"
    assert found["not_applicable"] == dict.fromkeys(options[-2:], {reason: [row["instance_id"]]})
    assert found["cases"]["exit at import"] | {"graded": 0, "not_applicable": 1} == found["cases"]["exit at import"]
    assert f"  exit at import: not applicable to 1 rows: {reason}\n" in ran.stdout


def test_a_killed_run_continues(tmp_path):
    known = json.loads(subprocess.run(
        [sys.executable, "-c", (
            "import json; from pathlib import Path; from agent_server.tasks.catalog import Catalog; "
            f"print(json.dumps(Catalog(Path({str(DEMO / 'tasks')!r})).ids('train')))"
        )],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout)  # fmt: skip
    rows, report = known[:2], tmp_path / "validate.json"
    lines = tmp_path / "validate.json.lines"
    command = [
        sys.executable,
        "-m",
        "agent_server",
        "validate",
        "--tasks",
        DEMO / "tasks",
        "--images",
        DEMO / "images",
        "--jobs",
        "1",
        "--report",
        report,
        *ONE_ATTACK,
        "--ids",
        *rows,
    ]
    # What a killed process cannot clean up lies in the test's own folder.
    first = subprocess.Popen(
        list(map(str, command)), cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)}, stdout=subprocess.DEVNULL
    )
    eventually(lambda: lines.exists() and lines.read_text().endswith("\n"), within_s=120, what="the first row graded")
    first.kill()
    first.wait()
    with lines.open("a") as torn:
        torn.write('{"task_id": "torn')
    time.sleep(0.5)
    ran, found = run_validate(
        "--tasks", DEMO / "tasks", "--images", DEMO / "images", "--jobs", 1, *ONE_ATTACK, "--ids", *rows, report=report
    )
    assert ran.returncode == 0 and "validate: 1 of 2 rows to grade" in ran.stdout and found["rows"] == 2, ran.stdout
    assert list(found["cases"]) == ["gold", "empty", ONE_ATTACK[1]]


def test_changed_and_failed_rows_are_graded_again(sample_rows, tmp_path):
    images, made = sample_rows
    row = json.loads(made["eval_script"].path.read_text())
    rows, report = tmp_path / "rows.jsonl", tmp_path / "validate.json"

    def validate_row(row: dict, images: Path) -> tuple[int, str]:
        rows.write_text(json.dumps(row) + "\n")
        ran, _ = run_validate("--tasks", rows, "--images", images, "--jobs", 1, *ONE_ATTACK, report=report)
        return ran.returncode, ran.stdout

    (tmp_path / "empty").mkdir()
    code, output = validate_row(row, tmp_path / "empty")
    assert code == 1 and "gold: image_missing" in output
    assert validate_row(row, images)[0] == 0
    code, output = validate_row(row, images)
    assert code == 0 and "validate: 0 of 1 rows to grade" in output
    code, output = validate_row(row | {"patch": ""}, images)
    assert code == 1 and "has no gold patch in its column `patch`" in output


def test_bad_input_is_reported(tmp_path):
    ran, _ = run_validate("--tasks", tmp_path / "none.jsonl", "--images", tmp_path, report=tmp_path / "r.json")
    assert ran.returncode == 2 and "none.jsonl does not exist" in ran.stderr and "Traceback" not in ran.stderr
    ran, _ = run_validate(
        "--tasks", DEMO / "tasks", "--images", tmp_path, "--ids", "nobody", report=tmp_path / "r.json"
    )
    assert ran.returncode == 2 and "no train task 'nobody'" in ran.stderr


def test_the_former_name_of_the_command_works():
    command = [sys.executable, "-m", "agent_server", "golden", "--help"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    text = " ".join(ran.stdout.split())
    assert ran.returncode == 0 and "works for one more release" in text
    assert "the report (default: golden.json here)" in text  # where scripts that call it look for the report
