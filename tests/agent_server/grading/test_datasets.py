"""Dataset classes: parsers of evaluation scripts, exit codes, names of tests, tasks on their way to the worker."""

import json
import shlex
from dataclasses import replace

import pytest

from agent_server.grading import changes
from agent_server.grading.datasets.base import TestRun, files_of_tests, is_doctest
from agent_server.grading.datasets.registry import load_dataset
from agent_server.grading.grade import grade
from agent_server.grading.placement import FreshSandbox
from agent_server.grading.protected_paths import paths_in_script
from agent_server.grading.reporter.report import ReportedTest, RunReport
from agent_server.tasks.task import Task
from tests.agent_server.grading.grading_bench import (
    CONFIG,
    PATCH,
    SOLVE,
    run,
)
from tests.agent_server.grading.sample_rows import F2P, NEW_TESTS, STATEMENT


@pytest.mark.parametrize(
    "parser, ids", [("pytest", F2P), ("unittest", ["test_total (test_it.It)"]), ("parse_log_pytest_v2", F2P)]
)
def test_a_script_may_name_its_parser(grading_bench, parser, ids):
    script = grading_bench("eval_script")
    runs = {
        "unittest": (
            "cat >/tmp/test_it.py <<'END'\nimport unittest\nfrom calc.core import total\nclass "
            "It(unittest.TestCase):\n    def test_total(self):\n        assert total([1, 2]) "
            "== 3\nEND\nPYTHONPATH=/tmp:/testbed:$PYTHONPATH python3 -m unittest -v test_it"
        ),
    }
    pytest_run = f"cat >tests/test_core.py <<'END'\n{NEW_TESTS}END\npython3 -m pytest -rA tests/test_core.py"
    row = script.row | {"eval_script": runs.get(parser, pytest_run), "log_parser": parser, "FAIL_TO_PASS": ids}
    assert script.dataset.reason_ungradable(row) == ""
    task = script.dataset.task(row)
    assert grade(script.dataset, task, PATCH, script.sandbox(), FreshSandbox(), CONFIG).resolved
    lost = grade(script.dataset, task, "", script.sandbox(), FreshSandbox(), CONFIG)
    assert not lost.resolved and set(lost.tests.values()) <= {"FAILED", "MISSING"}


def test_a_task_survives_its_way_to_the_worker(grading_bench):
    for name in ("r2e_a", "swebench_old", "eval_script"):
        task = grading_bench(name).task
        assert (
            Task.from_dict(task.as_dict()) == task
            and task.problem_statement == STATEMENT
            and load_dataset(task.dataset).test_script(task)
        )


@pytest.mark.parametrize("command", ["python3 -m pytest -rA tests/test_core.py", "python3 -m pytest", "bash check.sh"])
def test_an_exit_code_counts_only_with_the_rows_own_tests(grading_bench, command):
    """Rows without a parser, whose tests and script lie in the repository."""
    script = grading_bench("eval_script")
    script.task = replace(script.task, row=script.task.row | {"eval_script": command})
    new = "from calc.core import total\n\n\ndef test_total():\n    assert total([1, 2]) == 3\n"
    tests = (
        f"printf %s {shlex.quote(new)} >tests/test_core.py; echo 'python3 -m pytest tests/test_core.py' "
        ">check.sh; git add -A; git -c user.name=a -c user.email=a@b commit -qm tests"
    )

    def graded(edit):
        agents, fresh = script.sandbox(), script.sandbox()
        assert run(fresh, tests).returncode == 0
        assert run(agents, f"{tests}; {edit}").returncode == 0
        return script.grade(changes.collect_diff(agents), sandbox=fresh)

    evil = "echo 'def test_total(): pass' >tests/test_core.py; echo true >check.sh"
    assert not graded(evil).resolved
    assert graded(SOLVE).resolved
    assert graded(f"{SOLVE}; {evil}").resolved


def test_files_that_an_installing_command_names_are_no_tests(grading_bench):
    bench = grading_bench("swebench_new")
    script = bench.row["eval_script"].replace("git status\n", "pip install -r test-requirements.txt || true\n")
    task = bench.dataset.task(bench.row | {"eval_script": script})
    assert "test-requirements.txt" in bench.dataset.test_script(task)
    named = list(paths_in_script(bench.dataset.script_of_tests(task)))
    assert "tests/test_core.py" in named and "test-requirements.txt" not in named


def reported(node: str, outcome: str) -> ReportedTest:
    """A test as pytest reports it in the repository's root."""
    file, _, name = node.partition("::")
    return ReportedTest("pytest", file, name, node, outcome)


def test_r2e_compares_passed_failed_and_error_alone(grading_bench):
    """R2E-Gym's log parser knows no other outcome, so its expected ones hold no other."""
    dataset = grading_bench("r2e_a").dataset
    row = {"docker_image": "x", "problem_statement": "x", "expected_output_json": json.dumps({"test_a": "PASSED"})}
    task = dataset.task(row)
    for other in ("SKIPPED", "XFAIL", "XPASS"):
        tests = (reported("r2e_tests/test_1.py::test_a", "PASSED"), reported("r2e_tests/test_1.py::test_b", other))
        assert dataset.resolved(task, dataset.outcomes(task, TestRun("", 0, RunReport(tests, fault="")))), other
    tests = (reported("r2e_tests/test_1.py::test_a", "SKIPPED"),)
    assert not dataset.resolved(task, dataset.outcomes(task, TestRun("", 0, RunReport(tests, fault=""))))


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("pkg/mod.py::pkg.mod.double", True), ("src/pkg/mod.py::pkg.mod.C.method", True), ("mod.py::mod.double", True),
        ("pkg/__init__.py::pkg.double", True), ("tests/test_total.py::test_total", False),
        ("tests/test_a.py::test_a[1.5]", False), ("tests/test_a.py::TestA::test_b", False),
        ("guide.rst::guide.rst", False),
    ],
)  # fmt: skip
def test_the_file_of_a_doctest_is_no_test_file(test, expected):
    assert is_doctest(test) == expected and (files_of_tests([test]) == ()) == expected


def test_the_worse_of_two_tests_with_one_name_counts(grading_bench):
    dataset = grading_bench("r2e_a").dataset
    row = {"docker_image": "x", "problem_statement": "x", "expected_output_json": json.dumps({"test_a": "PASSED"})}
    tests = (reported("r2e_tests/test_1.py::test_a", "FAILED"), reported("r2e_tests/test_2.py::test_a", "PASSED"))
    ran = TestRun("", 0, RunReport(tests, fault=""))
    assert not dataset.resolved(dataset.task(row), dataset.outcomes(dataset.task(row), ran))
