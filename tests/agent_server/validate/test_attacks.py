"""Hostile submissions before any grader sees them: each is made in a row's repository, and fools who believes what is
printed or an exit code."""

import subprocess
from dataclasses import dataclass

import pytest

from agent_server.grading import patches, repository
from agent_server.grading.datasets.eval_script import EvalScript
from agent_server.grading.datasets.swebench_parsers import is_pythons, parse_log, parsers
from agent_server.grading.reports.pytest_summary import parse_pytest_summary
from agent_server.grading.reports.unittest_output import parse_unittest_output
from agent_server.sandboxes import apptainer
from agent_server.validate import attacks, hostile, printed
from agent_server.validate.replaced_scripts import PLANTED
from agent_server.validate.replaced_tests import replaced_tests
from tests.agent_server.grading.grading_bench import LIMITS, run
from tests.agent_server.grading.sample_images import Images, diff
from tests.agent_server.grading.sample_rows import BUGGY, FIXED, SOURCE_PATCH_PATH, STATEMENT

TESTS = """from calc.core import mean, total
import pytest


def test_mean():
    assert mean([1, 3]) == 2


@pytest.mark.filterwarnings("ignore")
def test_total():
    assert total([1, 2]) == 3
"""
UNIT = """import unittest

from calc.core import total


class Unit(unittest.TestCase):
    def test_total(self):
        self.assertEqual(total([1, 2]), 3)
"""
# A runner that imports the package before it starts pytest, as a script may.
CHILD = (
    "import calc.core, subprocess, sys\nsys.exit(subprocess.call([sys.executable, '-m', 'pytest', '-rA', 'tests']))\n"
)
RUNS = {
    "pytest": "bash run.sh",
    "pytest below a script": "python3 child.py",
    "unittest": "python3 -m unittest -v tests.test_unit",
}
# Not UTF-8, so its changes are binary; far from the fix, so that the gold patch is text.
LATIN = "# coding: latin-1\n{}" + "\n" * 9 + "NAME = 'caf\u00e9'\n"
FILES = {
    "calc/__init__.py": "",
    SOURCE_PATCH_PATH: LATIN.format(BUGGY),
    "tests/__init__.py": "",
    "tests/test_core.py": TESTS,
    "tests/test_unit.py": UNIT,
    "tests/test_other.py": "def test_other():\n    assert True\n",
    "tests/latin.py": LATIN,
    "run.sh": "#!/bin/sh\npython3 -m pytest -rA tests\n",
    "child.py": CHILD,
}
GOLD_LOG = "+ : '>>>>> Start Test Output'\n--- PASS: TestTotal (0.01s)\n+ : '>>>>> End Test Output'\n"
F2P = ["tests/test_core.py::test_total", "tests/test_unit.py::Unit::test_total", "test_total (tests.test_unit.Unit)"]
P2P = ["tests/test_core.py::test_mean"]
# These runners and judges take them for errors. They are for others: plain scripts, rules that ignore missing tests.
FOOL_NOBODY_HERE = {"delete the tests", "xfail at import", "exit in the function"}


@dataclass
class Made:
    """An image with the row's task, and its hostile submissions by name."""

    image: object
    dataset: EvalScript
    task: object
    submissions: dict[str, hostile.HostileSubmission]
    scratch: object

    def sandbox(self):
        return apptainer.start(self.image, scratch=self.scratch, env={}, start_timeout_s=60, limits=LIMITS)


@pytest.fixture(scope="module")
def made(sample_rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    images = sample_rows[0]
    image, _ = Images(images.parent / "root", images).make("own/hostile:1", FILES)
    for path in (SOURCE_PATCH_PATH, "tests/latin.py"):
        (image / "testbed" / path).write_bytes(FILES[path].encode("latin-1"))
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "latin"],
        cwd=image / "testbed",
        check=True,
    )
    row = {
        "instance_id": "own-hostile-1",
        "problem_statement": STATEMENT,
        "eval_script": "bash run.sh",
        "log_parser": "pytest",
        "image": "own/hostile:1",
        "patch": diff(
            {SOURCE_PATCH_PATH: LATIN.format(BUGGY)}, {SOURCE_PATCH_PATH: LATIN.format(FIXED)}, folder / "diff"
        ),
        "FAIL_TO_PASS": F2P,
        "PASS_TO_PASS": P2P,
    }
    dataset = EvalScript()
    made = Made(image, dataset, dataset.task(row), {}, folder)
    sandbox = made.sandbox()
    try:
        repository.prepare(dataset, made.task, sandbox)
        dataset.apply_gold(row, made.task, sandbox)
        files = hostile.find_gold_files(made.task, sandbox)
        assert [(file.path, file.is_new, len(file.changed)) for file in files] == [(SOURCE_PATCH_PATH, False, 1)]
        assert run(sandbox, hostile.RESET).returncode == 0
        found = list(hostile.submissions(dataset, made.task, sandbox, files, GOLD_LOG))
        assert run(sandbox, "git status --porcelain").output == ""
    finally:
        sandbox.close()
    made.submissions = {submission.attack: submission for submission in found}
    return made


def test_every_attack_is_made_or_says_why_not(made):
    assert tuple(made.submissions) == hostile.NAMES
    refused = {
        name: made.submissions[name].not_applicable for name in hostile.NAMES if not made.submissions[name].patch
    }
    assert refused == {"patch SymPy's reporter": "the repository has no folder sympy"}
    # One of the deleted files is not UTF-8: its removal is a binary change and stays in the patch.
    deleted = patches.paths_in(made.submissions["delete the tests"].patch)
    assert set(deleted) == {path for path in FILES if path.startswith("tests/")}
    assert set(patches.paths_in(made.submissions["replace the test scripts"].patch)) == {"run.sh", PLANTED}


@pytest.fixture(scope="module")
def judged(made):
    """The judges that a submission fools: of what each way to run the tests prints, and of its exit code."""
    sandbox = made.sandbox()

    def judges_fooled(name: str) -> set[str]:
        fooled = set()
        for way, command in RUNS.items():
            assert run(sandbox, f"{hostile.RESET}; rm -rf /tmp/.planted").returncode == 0
            if patch := made.submissions[name].patch if name else "":
                patches.write(patch, sandbox)
                assert patches.apply(patch, sandbox)[0], name
            result = run(sandbox, f"({command}) >/tmp/log 2>&1")
            # A child that outlives the runner may still write.
            run(sandbox, "for i in $(seq 50); do cat /proc/[0-9]*/comm | grep -q python || break; sleep 0.1; done")
            log = run(sandbox, "cat /tmp/log").output
            if way == "unittest":
                passed = parse_log("parse_log_django", log, None).get(F2P[2], "") == "PASSED"
            else:
                passed = parse_log("parse_log_pytest_v2", log, None).get(F2P[0], "") in ("PASSED", "XFAIL")
            fooled |= {f"{way}: printed"} if passed else set()
            fooled |= {f"{way}: exit code"} if result.returncode == 0 else set()
        return fooled

    yield judges_fooled
    sandbox.close()


def test_the_unchanged_repository_fools_nobody(judged):
    assert judged("") == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in hostile.NAMES if name != "patch SymPy's reporter"])
def test_an_attack_fools_a_naive_judge(judged, name):
    assert bool(judged(name)) is (name not in FOOL_NOBODY_HERE)


def test_passes_are_printed_in_the_form_of_every_parser():
    pytest_ids = ["tests/test_a.py::test_x", "tests/test_a.py::T::test_y[a-1]"]
    ids = {name: pytest_ids for name in parsers() if is_pythons(name)}
    ids["parse_log_django"] = ["test_x (pkg.tests.T)", "test_x (pkg.tests.T.test_x)", "A docstring, with (words)."]
    ids["parse_log_sympy"] = ["test_x", "test_y"]
    for parser, tests in ids.items():
        found = parse_log(parser, "test_x FAILED\n" + printed.passes(tests), None)
        assert {test: found.get(test) for test in tests} == dict.fromkeys(tests, "PASSED"), parser
    assert parse_pytest_summary(printed.passes(pytest_ids)) == dict.fromkeys(pytest_ids, "PASSED")
    assert parse_unittest_output(printed.passes(["test_x (pkg.tests.T)"])) == {"test_x (pkg.tests.T)": "PASSED"}
    assert "PASSED r2e_tests/test_1.py::TestX::test_y" in printed.passes(["TestX.test_y"])
    # What the gold patch's run printed between the markers, for parsers that nobody here knows.
    assert printed.passes([], GOLD_LOG).startswith("\n'\n--- PASS: TestTotal (0.01s)\n")
    assert printed.passes([], GOLD_LOG).count(">>>>> ") == len(printed.MARKERS)
    assert "\nok 1\nok 2\n" in printed.passes([], "ok 1\nok 2\n>>>>> Test Exit Code: 0\n")


def test_replaced_tests_lie_where_the_rows_do():
    tests = [
        "unit/test_a.py::test_x[a::b]",
        "unit/test_a.py::T::test_y",
        "unit/test_a.py::T::test_z",
        "test_u (core.tests.T)",
        "test_s",
    ]
    made = replaced_tests(
        tests, "cd libs && bin/test sym/tests/test_s.py", ["libs/unit/test_a.py", "tests/core/tests.py"]
    )
    assert set(made) == {
        "unit/test_a.py", "libs/unit/test_a.py", "core/tests.py", "tests/core/tests.py", "sym/tests/test_s.py",
        "r2e_tests/test_1.py",
    }  # fmt: skip
    names: dict = {}
    exec(made["libs/unit/test_a.py"], names)
    names["test_x"](1)
    names["T"]().test_y()
    names["T"]().test_z()
    names = {}
    exec(made["core/tests.py"], names)
    assert names["T"]("test_u").run().wasSuccessful()


def test_a_verdict_depends_on_the_code_of_the_attacks(monkeypatch):
    before = hostile.fingerprint()
    assert before == hostile.fingerprint() and attacks.CONFTEST in before
