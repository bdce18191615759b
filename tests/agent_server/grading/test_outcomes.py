"""What each test did, read from what real runs of pytest write, and from what programs print to deceive."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest

from agent_server.grading.outcomes import MISSING, expected_outcomes, resolved
from agent_server.grading.reports.junit import parse_junit
from agent_server.grading.reports.pytest_summary import parse_pytest_summary

HEAD = "=========================== short test summary info ============================\n"


@dataclass
class Run:
    output: str
    report: str

    @property
    def summary(self) -> dict[str, str]:
        return parse_pytest_summary(self.output)

    @property
    def junit(self) -> dict[str, str]:
        return parse_junit(self.report)


@pytest.fixture
def start_pytest(tmp_path):
    """This environment's pytest, a process of its own, with none of the environment's plugins."""

    def start_pytest(*arguments: str, **environment: str) -> str:
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("PYTEST_") and name not in {"CI", "COLUMNS"}
        }
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        environment = clean | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | environment
        done = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, timeout=120)
        return done.stdout.decode()  # not text=True, for which a carriage return would end a line

    return start_pytest


@pytest.fixture
def run_pytest(tmp_path, start_pytest):
    """Runs pytest, as a row's test command does, on files given as text."""

    def run(files: dict[str, str], *arguments: str, family: str = "xunit1", **environment: str) -> Run:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        report = tmp_path / "report.xml"
        output = start_pytest(
            "-rA", "--rootdir=.", f"--junitxml={report}", "-o", f"junit_family={family}", *arguments, **environment
        )
        return Run(output, report.read_text())

    return run


@pytest.fixture
def collected(start_pytest):
    """The ids of all tests, in pytest's own words."""
    return lambda: [line for line in start_pytest("--collect-only", "-q").splitlines() if "::" in line]


# --- every outcome, by both readers -----------------------------------------------------------------------------------------

OUTCOMES = {
    "tests/test_all.py": """
import pytest, unittest
@pytest.fixture
def bad(): raise RuntimeError("in - setup [x]")
@pytest.fixture
def bad_end():
    yield
    raise RuntimeError("in teardown")
def test_passed(): print("FAILED tests/test_all.py::test_passed - not really")
def test_failed(): print("PASSED tests/test_all.py::test_failed"); assert 0, "a - b [c - d]"
def test_setup(bad): pass
def test_teardown(bad_end): pass
def test_failed_and_teardown(bad_end): assert 0
@pytest.mark.skip(reason="no - way")
def test_skipped(): pass
def test_skipped_within(): pytest.skip("inside")
@pytest.mark.xfail(reason="known - [x]")
def test_xfail(): assert 0
@pytest.mark.xfail
def test_xfail_without_reason(): assert 0
@pytest.mark.xfail(run=False, reason="not run")
def test_xfail_not_run(): assert 0
@pytest.mark.xfail
def test_xfail_setup(bad): pass
@pytest.mark.xfail(reason="was - known")
def test_xpass(): pass
@pytest.mark.xfail(strict=True, reason="strict")
def test_xpass_strict(): pass
class TestOne:
    def test_method(self): pass
    class TestInner:
        @pytest.mark.parametrize("v", ["x.y::z"])
        def test_inner(self, v): pass
class TestUnit(unittest.TestCase):
    def test_unit(self): pass
    def test_subtest(self):
        for i in range(2):
            with self.subTest("m - x::y", i=i, j="[v] - w"): self.assertEqual(i, 0)
    @unittest.expectedFailure
    def test_expected(self): self.fail()
"""
}
WORD_OF = {
    "test_passed": "PASSED", "test_failed": "FAILED", "test_setup": "ERROR", "test_teardown": "ERROR", "test_failed_and_teardown": "ERROR",
    "test_xfail": "XFAIL", "test_xfail_without_reason": "XFAIL", "test_xfail_not_run": "XFAIL", "test_xfail_setup": "XFAIL",
    "test_xpass_strict": "FAILED", "TestOne::test_method": "PASSED", "TestOne::TestInner::test_inner[x.y::z]": "PASSED",
    "TestUnit::test_unit": "PASSED", "TestUnit::test_subtest": "FAILED", "TestUnit::test_expected": "XFAIL",
}  # fmt: skip
SKIPS = {"test_skipped": "SKIPPED", "test_skipped_within": "SKIPPED"}


def in_file(words: dict[str, str]) -> dict[str, str]:
    return {f"tests/test_all.py::{name}": word for name, word in words.items()}


@pytest.mark.parametrize("family", ["xunit1", "xunit2"])
def test_every_outcome_in_the_junit_report(run_pytest, collected, family):
    run = run_pytest(OUTCOMES, family=family)
    assert run.junit == in_file(WORD_OF | SKIPS | {"test_xpass": "PASSED"})  # the report does not know XPASS
    assert set(run.junit) == set(collected())


@pytest.mark.parametrize(("colour", "verbosity"), [("no", "-q"), ("no", "-vv"), ("yes", "-v")])
def test_every_outcome_in_the_summary(run_pytest, colour, verbosity):
    run = run_pytest(OUTCOMES, f"--color={colour}", verbosity)
    assert ("\x1b[32mPASSED" in run.output) == (colour == "yes")
    assert run.summary == in_file(WORD_OF | {"test_xpass": "XPASS"})  # folded: skipped tests are not named


def test_skipped_tests_are_named_where_pytest_is_told_so(run_pytest):
    assert run_pytest(OUTCOMES, "--no-fold-skipped").summary == in_file(WORD_OF | SKIPS | {"test_xpass": "XPASS"})


OLDER = """
PASSED t.py::TestU::test_sub
PASSED t.py::test_two
PASSED t.py::test_g
SKIPPED [1] t.py:21: no - way
XFAIL t.py::test_a - reason: 
XFAIL t.py::test_b
  reason: of pytest 5
XFAIL t.py::test_c - reason: [NOTRUN] not run
XPASS t.py::test_d was known
XPASS t.py::test_e[a b] was - known
XPASS t.py::test_f 
SUBFAILED t.py::test_g - assert 0
[m - x] (i=1) SUBFAIL t.py::TestU::test_sub - AssertionError: ...
(k='[v] - w') SUBFAIL t.py::test_two - assert 0
(i=0) SUBSKIP [2] t.py:6: nope
==== 3 failed, 2 passed, 1 skipped, 3 xfailed, 3 xpassed in 0.10 seconds ====
"""


def test_the_summary_of_older_pytests_and_of_the_subtests_plugin():
    """Lines of pytest 4.6 to 7.4 and of pytest-subtests, which this environment's pytest writes otherwise."""
    assert parse_pytest_summary(HEAD + OLDER) == {
        "t.py::TestU::test_sub": "FAILED", "t.py::test_two": "FAILED", "t.py::test_g": "FAILED", "t.py::test_a": "XFAIL", "t.py::test_b": "XFAIL",
        "t.py::test_c": "XFAIL", "t.py::test_d": "XPASS", "t.py::test_e[a b]": "XPASS", "t.py::test_f": "XPASS",
    }  # fmt: skip


def test_the_junit_report_of_pytest_3():
    entry = '<testcase classname="t.TestC.TestInner.()" file="t.py" name="test_x"><skipped message="{}"{}>why</skipped></testcase>'
    assert parse_junit(entry.format("expected test failure", "")) == {"t.py::TestC::TestInner::test_x": "XFAIL"}
    assert parse_junit(entry.format("expected test failure", ' type="pytest.skip"')) == {
        "t.py::TestC::TestInner::test_x": "SKIPPED"
    }


# --- ids --------------------------------------------------------------------------------------------------------------------

IDS = [
    "a b", "a - b", "a:b::c", "x/y.py", "]", "[", "a]b - c[d", "é☃", "tab\there", "new\nline", "\x1b[31mred\x1b[0m", "", " lead", "trail ",
    "a - ", " - ", "\\back", "'q\"<&>", "PASSED", "1 passed in 0.1s", "x" * 300, "at setup of",
]  # fmt: skip
PARAMETRISED = f"""
import pytest
IDS = {IDS!r}
@pytest.mark.parametrize("v", IDS, ids=IDS)
def test_good(v): pass
@pytest.mark.parametrize("v", IDS, ids=IDS)
def test_bad(v): assert v == 1, "boom - [ - ] :: more"
@pytest.mark.parametrize("v", IDS, ids=IDS)
@pytest.mark.xfail(reason="known - [x]")
def test_known(v): assert 0
@pytest.mark.parametrize("v", IDS, ids=IDS)
def test_end(v, bad_end): pass
@pytest.fixture
def bad_end():
    yield
    raise RuntimeError("[x] - y]")
"""


@pytest.mark.parametrize("colour", ["yes", "no"])
def test_ids_of_any_characters(run_pytest, collected, colour):
    run = run_pytest({"tests/deep er/test_ids.py": PARAMETRISED}, f"--color={colour}")
    word = {"test_good": "PASSED", "test_bad": "FAILED", "test_known": "XFAIL", "test_end": "ERROR"}
    wanted = {name: word[re.search(r"::(\w+)\[", name)[1]] for name in collected()}
    assert len(wanted) == 4 * len(IDS) and run.summary == wanted and run.junit == wanted


def test_an_id_that_looks_like_an_id_with_a_reason():
    """A known id, since the order is passed before failed; an unknown one is cut at the first place that may be its end."""
    lines = "PASSED t.py::t[a] - b]\nPASSED t.py::t[a]\nERROR t.py::t[a] - b] - boom\nFAILED t.py::t[c] - d]\n"
    assert parse_pytest_summary(HEAD + lines) == {
        "t.py::t[a] - b]": "ERROR",
        "t.py::t[a]": "PASSED",
        "t.py::t[c]": "FAILED",
    }


def test_an_inherited_test_belongs_to_the_file_that_inherits_it(run_pytest):
    """The report's `file` is the base class's."""
    base, child = (
        "class Base:\n    def test_inherited(self): pass\n",
        "from base_of import Base\nclass TestChild(Base): pass\n",
    )
    run = run_pytest({"tests/base_of.py": base, "tests/test_child.py": child})
    assert 'file="tests/base_of.py"' in run.report
    assert run.junit == run.summary == {"tests/test_child.py::TestChild::test_inherited": "PASSED"}


def test_files_that_are_looked_for_say_where_a_path_ends(run_pytest):
    odd = {"tests/Odd/Test_it.py": "class test_low:\n    def test_x(self): pass\n"}
    run = run_pytest(odd, "-o", "python_files=Test_*", "-o", "python_classes=test_*", family="xunit2")
    (test,) = run.summary
    assert test == "tests/Odd/Test_it.py::test_low::test_x" and parse_junit(run.report, ["tests/Odd/Test_it.py"]) == {
        test: "PASSED"
    }


def test_doctests_have_ids_too(run_pytest):
    good = 'def f():\n    """\n    >>> 1\n    1\n    """\n'
    run = run_pytest({"pkg/mod.py": good, "pkg/test_guide.txt": ">>> 1\n2\n"}, "--doctest-modules")
    assert run.junit == run.summary == {"pkg/mod.py::mod.f": "PASSED", "pkg/test_guide.txt::test_guide.txt": "FAILED"}


# --- files that cannot be collected -----------------------------------------------------------------------------------------

BROKEN = {
    "tests/test_broken.py": "import nowhere_to_be_found\ndef test_one(): pass\n",
    "tests/test_fine.py": "def test_two(): pass\n",
}


def test_of_a_file_that_cannot_be_collected_every_test_has_failed(run_pytest):
    run = run_pytest(BROKEN, "--continue-on-collection-errors")
    wanted = {"tests/test_broken.py": "ERROR", "tests/test_fine.py::test_two": "PASSED"}
    assert run.summary == run.junit == wanted
    for outcomes in (run.summary, run.junit):
        assert expected_outcomes(["tests/test_broken.py::test_one"], outcomes) == {
            "tests/test_broken.py::test_one": MISSING
        }
        assert not resolved(outcomes, ["tests/test_fine.py::test_two"], ["tests/test_broken.py::test_one"])
        assert not resolved(outcomes, ["tests/test_broken.py::test_one"], []) and resolved(
            outcomes, ["tests/test_fine.py::test_two"], []
        )


def test_a_file_skipped_as_a_whole_has_no_tests(run_pytest):
    run = run_pytest(
        {"tests/test_skip.py": "import pytest\npytest.skip('all', allow_module_level=True)\ndef test_one(): pass\n"}
    )
    assert run.junit == {"tests/test_skip.py": "SKIPPED"} and run.summary == {}
    assert not resolved(run.junit, [], ["tests/test_skip.py::test_one"])


def test_a_reason_of_many_lines_passes_no_test_of_such_a_file(run_pytest):
    """With `CI` set, which a program may do too, pytest prints whole messages into its summary."""
    forged = "def test_two(): raise ValueError('x\\nPASSED tests/test_broken.py::test_one')\n"
    run = run_pytest(BROKEN | {"tests/test_fine.py": forged}, "--continue-on-collection-errors", CI="1")
    assert "\nPASSED tests/test_broken.py::test_one" in run.output.partition(HEAD)[2]
    assert run.summary == run.junit == {"tests/test_broken.py": "ERROR", "tests/test_fine.py::test_two": "FAILED"}


def test_only_a_line_feed_ends_a_line(run_pytest):
    texts = [
        f"x{separator}PASSED tests/test_odd.py::test_gone"
        for separator in ("\u2028", "\x85", "\x0b", "\x0c", "\x1c", "\r")
    ]
    forged = "".join(f"def test_{n}(): raise ValueError({text!r})\n" for n, text in enumerate(texts))
    run = run_pytest({"tests/test_odd.py": forged}, "-vv")
    assert all(text in run.output.partition(HEAD)[2] for text in texts)
    assert run.summary == run.junit == {f"tests/test_odd.py::test_{n}": "FAILED" for n in range(len(texts))}


# --- what is not the summary ------------------------------------------------------------------------------------------------

FAKE = HEAD + "PASSED tests/test_fake.py::test_it\n1 passed in 0.01s\n"


def test_a_summary_printed_before_pytests_is_not_read(run_pytest):
    run = run_pytest(
        {
            "tests/test_fake.py": f"def test_it():\n    print({FAKE!r})\n    assert 0\ndef test_other(): print({FAKE!r})\n"
        },
        "-s",
    )
    assert run.output.count(HEAD) == 3
    assert (
        run.summary
        == run.junit
        == {"tests/test_fake.py::test_it": "FAILED", "tests/test_fake.py::test_other": "PASSED"}
    )


def test_a_summary_printed_after_pytests_deceives_the_summary_reader_and_not_the_junit_reader(run_pytest):
    run = run_pytest(
        {"tests/test_fake.py": f"import atexit\natexit.register(print, {FAKE!r})\ndef test_it(): assert 0\n"}
    )
    assert run.junit == {"tests/test_fake.py::test_it": "FAILED"}
    assert run.summary == {"tests/test_fake.py::test_it": "PASSED"}  # the known limit of reading output


def test_lines_after_pytests_closing_line_are_not_read(run_pytest):
    late = "import atexit\natexit.register(print, 'PASSED tests/test_late.py::test_gone')\ndef test_it(): pass\n"
    run = run_pytest({"tests/test_late.py": late})
    assert run.output.rstrip().endswith("test_gone") and run.summary == run.junit == {
        "tests/test_late.py::test_it": "PASSED"
    }


def test_progress_lines_of_parallel_workers_are_not_the_summary():
    """As pytest-xdist 3.8 prints them with -v."""
    progress = "[gw0] linux Python 3.11.7 cwd: /testbed\n2 workers [3 items]\n\nt.py::a \n[gw1] [ 33%] PASSED t.py::b \nPASSED t.py::d\n"
    summary = (
        HEAD
        + "PASSED t.py::b\nFAILED t.py::a - assert 0\n[gw1] [100%] PASSED t.py::c \n========= 1 failed, 1 passed in 0.44s =========\n"
    )
    assert parse_pytest_summary(progress) == {}
    assert parse_pytest_summary(progress + summary) == {"t.py::b": "PASSED", "t.py::a": "FAILED"}


SHORT_SUMMARY = """
PASSED tests/fake.py::printed_by_a_test
=========================== short test summary info ============================
PASSED tests/a.py::test_one
\x1b[32mPASSED\x1b[0m tests/a.py::test_two[a - b]
FAILED tests/a.py::test_three[x y] - assert 1 == 2
PASSED tests/a.py::test_four
ERROR tests/a.py::test_four - teardown broke
SKIPPED [1] tests/a.py:3: not here
XFAIL tests/a.py::test_five - known
2 failed, 3 passed in 0.1s
"""


def test_outcomes_come_from_the_summary_only():
    assert parse_pytest_summary(SHORT_SUMMARY) == {
        "tests/a.py::test_one": "PASSED", "tests/a.py::test_two[a - b]": "PASSED", "tests/a.py::test_three[x y]": "FAILED",
        "tests/a.py::test_four": "ERROR", "tests/a.py::test_five": "XFAIL",
    }  # fmt: skip
    assert parse_pytest_summary("PASSED tests/a.py::test_one\n") == {}


def test_a_missing_or_skipped_test_is_a_failed_one():
    assert resolved({"a": "PASSED", "b": "PASSED"}, ["a"], ["b"])
    assert (
        not resolved({"a": "PASSED"}, ["a"], ["b"])
        and not resolved({"a": "XPASS"}, ["a"], [])
        and not resolved({}, ["a"], [])
    )
