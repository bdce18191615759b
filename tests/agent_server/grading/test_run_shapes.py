"""Runs of many shapes: folders, several runners, switches of the repository's own. Correct work is 1, none is 0."""

import json
import shlex
from dataclasses import replace

import pytest

from agent_server.grading import changes, repository
from tests.agent_server.grading.grading_bench import CONFIG, SOLVE, run

TEST = "from calc.core import total\ndef test_total(): assert total([1, 2]) == 3\n"
MEAN = "from calc.core import mean\ndef test_mean(): assert mean([1, 3]) == 2\n"
HERE = "cd /testbed; export PYTHONPATH=/testbed"
UNIT = "import unittest\nclass T(unittest.TestCase):\n    test_it = staticmethod(test_total)\n"
FORGED = "def test_total(): pass\n"


def write(**files: str) -> str:
    """Commands that write and commit files; `__` in a name stands for `/`, `_dot_` for a dot."""
    named = {name.replace("__", "/").replace("_dot_", "."): text for name, text in files.items()}
    commands = [f"mkdir -p $(dirname {name}) && printf %s {shlex.quote(text)} >{name}" for name, text in named.items()]
    return " && ".join([*commands, "git add -A && git -c user.name=a -c user.email=a@b commit -qm more"])


SUB = "libs__core__tests__unit__test_a_dot_py"
SUB_ID, LOCAL_ID = "libs/core/tests/unit/test_a.py::test_total", "tests/unit/test_a.py::test_total"
SHAPES = {
    "ids relative to a folder": (
        write(**{SUB: TEST}), "cd libs/core && python3 -m pytest -rA tests/unit/test_a.py", [LOCAL_ID],
    ),
    "a script of the repository": (
        write(**{SUB: TEST}, run_dot_sh="cd libs/core && python3 -m pytest tests/unit/test_a.py"),
        "bash run.sh", [LOCAL_ID],
    ),
    "ids of the repository from a folder": (
        write(**{SUB: TEST}), "cd libs/core && python3 -m pytest tests/unit/test_a.py", [SUB_ID],
    ),
    "pytest's root below the repository": (
        write(**{SUB: TEST}, libs__core__pyproject_dot_toml="[tool.pytest.ini_options]\n"),
        "python3 -m pytest -rA libs/core/tests/unit/test_a.py", [SUB_ID],
    ),
    "an ini file by -c": (
        write(**{SUB: TEST}, libs__core__pytest_dot_ini="[pytest]\n"),
        "python3 -m pytest -c libs/core/pytest.ini libs/core/tests", [SUB_ID],
    ),
    "two runs": (
        write(a__test_a_dot_py=TEST, b__test_b_dot_py=MEAN),
        "python3 -m pytest a; python3 -m pytest b", ["a/test_a.py::test_total", "b/test_b.py::test_mean"],
    ),
    "variables taken away": (
        write(a__test_a_dot_py=TEST),
        'env -i PATH="$PATH" PYTHONPATH=/testbed python3 -m pytest a', ["a/test_a.py::test_total"],
    ),
    "no plugins": (
        write(a__test_a_dot_py=TEST),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 python3 -m pytest -p no:junitxml a", ["a/test_a.py::test_total"],
    ),
    "addopts of its own": (
        write(a__test_a_dot_py=TEST, pytest_dot_ini="[pytest]\naddopts = -p no:junitxml --ff\n"),
        "PYTEST_ADDOPTS='-p no:terminal' python3 -m pytest a", ["a/test_a.py::test_total"],
    ),
    "a cache": (
        write(
            a__test_a_dot_py=f"{TEST}def test_cache(cache): cache.set('a/b', 1)\n",
            conftest_dot_py="def pytest_configure(config): config.cache.get('a/b', None)\n",
        ),
        "python3 -m pytest a", ["a/test_a.py::test_total", "a/test_a.py::test_cache"],
    ),
    "an exit status of its own": (
        write(
            a__test_a_dot_py=TEST,
            conftest_dot_py="def pytest_sessionfinish(session): session.exitstatus = 1\n",
        ),
        "python3 -m pytest a", ["a/test_a.py::test_total"],
    ),
    "a crash after the session": (
        write(
            a__test_a_dot_py=TEST,
            conftest_dot_py="import atexit, os\natexit.register(os.abort)\n",
        ),
        "python3 -m pytest a", ["a/test_a.py::test_total"],
    ),
    "variables of the agent": (
        write(a__test_a_dot_py=f"{TEST}def test_pager():\n    import os\n    assert 'PAGER' not in os.environ\n"),
        "python3 -m pytest a", ["a/test_a.py::test_total", "a/test_a.py::test_pager"],
    ),
    "unittest in a folder": (
        write(a__test_a_dot_py=f"{TEST}{UNIT}"),
        "cd a && python3 -m unittest test_a", ["test_it (test_a.T)"],
    ),
}  # fmt: skip


@pytest.fixture
def shape(grading_bench):
    """Prepares a row with a set-up of its repository, a script and FAIL_TO_PASS; returns a function that grades an
    edit of the agent."""

    def shape(setup: str, script: str, tests: list[str]):
        bench = grading_bench("eval_script")
        columns = {"eval_script": f"{HERE}\n{script}", "log_parser": "unittest" if "(" in tests[0] else "pytest"}
        bench.task = replace(bench.task, row=bench.task.row | columns, fail_to_pass=tuple(tests))

        def graded(edit: str, **options):
            agents, fresh = bench.sandbox(), bench.sandbox()
            for sandbox in (agents, fresh):
                prepared = run(sandbox, setup)
                assert prepared.returncode == 0, prepared.output
            assert run(agents, edit).returncode == 0
            return bench.grade(changes.collect_diff(agents), replace(CONFIG, **options), sandbox=fresh)

        return graded

    return shape


@pytest.mark.parametrize("name", SHAPES)
def test_correct_work_is_one_and_none_is_zero(shape, name):
    graded = shape(*SHAPES[name])
    solved, lost = graded(SOLVE), graded("echo more >>README.md")
    assert solved.resolved, (solved.tests, solved.fault, solved.log)
    assert not lost.resolved and not lost.fault, (lost.tests, lost.log)


@pytest.mark.parametrize("name", ["ids relative to a folder", "a script of the repository", "an ini file by -c"])
def test_tests_are_the_rows_wherever_they_lie(shape, name):
    """The file is not where the id says, so only what the runner collected shows that it is the row's test."""
    graded = shape(*SHAPES[name])
    forge = f"printf %s {shlex.quote(FORGED)} >libs/core/tests/unit/test_a.py"
    forged = graded(forge)
    assert not forged.resolved and forged.touched == ("./libs/core/tests/unit/test_a.py",), forged.log
    assert graded(f"{SOLVE}; {forge}").resolved
    assert not graded(forge, protected_paths="allow").resolved
    assert graded(f"{SOLVE}; {forge}", protected_paths="reject").status == "rejected"


def test_hidden_tests_are_hidden_wherever_they_lie(grading_bench):
    """Ids of SWE-smith relative to a folder."""
    bench = grading_bench("swesmith")
    test = "from calc.core import total\ndef test_total(): assert total([1, 2]) == 3\n"
    columns = {"test_cmd": f"{HERE}; cd libs && python3 -m pytest unit"}
    bench.task = replace(
        bench.task, row=bench.task.row | columns, fail_to_pass=("unit/test_a.py::test_total",), pass_to_pass=()
    )
    agents, fresh = bench.sandbox(), bench.sandbox()
    for sandbox in (agents, fresh):
        assert run(sandbox, write(libs__unit__test_a_dot_py=test)).returncode == 0
    repository.prepare(bench.dataset, bench.task, agents)
    assert run(agents, "ls libs/unit/test_a.py").returncode != 0
    forge = f"mkdir -p libs/unit && printf %s {shlex.quote(FORGED)} >libs/unit/test_a.py"
    assert run(agents, forge).returncode == 0
    forged = bench.grade(changes.collect_diff(agents), sandbox=fresh)
    assert forged.applied_by and not forged.resolved and set(forged.tests.values()) == {"FAILED"}, forged


def test_tests_that_a_submission_adds_do_not_run(shape):
    """They could change what other tests import."""
    graded = shape(write(checks__test_a_dot_py=TEST), "python3 -m pytest", ["checks/test_a.py::test_total"])
    evil = "import calc.core\ncalc.core.total = sum\n"
    added = f"mkdir -p aaa && printf %s {shlex.quote(evil + FORGED)} >aaa/test_more.py"
    forged = graded(added)
    assert not forged.resolved and "./aaa/test_more.py" in forged.touched, (forged.touched, forged.log)
    solved = graded(f"{SOLVE}; {added}")
    assert solved.resolved, solved.log


def test_a_test_file_that_the_agent_left_behind_ends_no_run(shape):
    graded = shape(write(checks__test_a_dot_py=TEST), "python3 -m pytest", ["checks/test_a.py::test_total"])
    for left in ("import os; os._exit(0)", "raise SystemExit(0)", "import not_there"):
        solved = graded(f"{SOLVE}; echo '{left}' >test_repro.py")
        assert solved.resolved and solved.touched == ("./test_repro.py",), (left, solved.fault, solved.log)


def test_doctests_of_a_changed_file_are_no_planted_tests(shape):
    """Their file is the code that the task is about."""
    setup = write(calc__doc_dot_py='def double(x):\n    """\n    >>> double(2)\n    4\n    """\n    return x\n')
    graded = shape(setup, "python3 -m pytest --doctest-modules calc", ["calc/doc.py::calc.doc.double"])
    fix = "sed -i 's/return x/return 2 * x/' calc/doc.py"
    solved = graded(fix)
    assert solved.resolved and not solved.touched, (solved.tests, solved.log)
    assert not graded("true").resolved


def test_a_row_has_the_outcomes_it_prints(shape):
    """Every id of this run, in the record."""
    setup, script, tests = SHAPES["two runs"]
    found = shape(setup, script, tests)("true")
    assert json.loads(json.dumps(found.as_dict()))["tests"] == {
        "a/test_a.py::test_total": "FAILED", "b/test_b.py::test_mean": "PASSED",
    }  # fmt: skip
