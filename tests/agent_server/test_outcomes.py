"""What each test did, read from what real pytest and unittest runs write, and from what programs print to deceive."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_server.grading.outcomes import (
    MISSING, WORDS, expected_outcomes, keeps, parse_junit, parse_pytest_summary, parse_unittest, resolved, short_unittest_id, solves,
)  # fmt: skip

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
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_") and name not in {"CI", "BUILD_NUMBER", "COLUMNS"}}
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
        output = start_pytest("-rA", "--rootdir=.", f"--junitxml={report}", "-o", f"junit_family={family}", *arguments, **environment)
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


def test_the_summary_of_older_pytests_and_of_the_subtests_plugin():
    """Lines of pytest 7.4.4 and pytest-subtests 0.15 that this environment's pytest writes otherwise."""
    output = HEAD + (
        "PASSED t.py::TestU::test_sub\nPASSED t.py::test_two\nPASSED t.py::test_g\nSKIPPED [1] t.py:21: no - way\nXFAIL t.py::test_a - reason: \nXFAIL t.py::test_b\n"
        "  reason: of pytest 5\nXFAIL t.py::test_c - reason: [NOTRUN] not run\nXPASS t.py::test_d was known\nXPASS t.py::test_e[a b] was - known\nXPASS t.py::test_f \n"
        "SUBFAILED t.py::test_g - assert 0\n[m - x] (i=1) SUBFAIL t.py::TestU::test_sub - AssertionError: ...\n(k='[v] - w') SUBFAIL t.py::test_two - assert 0\n(i=0) SUBSKIP [2] t.py:6: nope\n"
        "==== 2 failed, 2 passed, 1 skipped, 3 xfailed, 3 xpassed in 0.10 seconds ====\n"
    )
    assert parse_pytest_summary(output) == {
        "t.py::TestU::test_sub": "FAILED", "t.py::test_two": "FAILED", "t.py::test_g": "FAILED", "t.py::test_a": "XFAIL", "t.py::test_b": "XFAIL", "t.py::test_c": "XFAIL",
        "t.py::test_d": "XPASS", "t.py::test_e[a b]": "XPASS", "t.py::test_f": "XPASS",
    }  # fmt: skip


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
    assert parse_pytest_summary(HEAD + lines) == {"t.py::t[a] - b]": "ERROR", "t.py::t[a]": "PASSED", "t.py::t[c]": "FAILED"}


def test_an_inherited_test_belongs_to_the_file_that_inherits_it(run_pytest):
    """The report's `file` is the base class's."""
    files = {"tests/base_of.py": "class Base:\n    def test_inherited(self): pass\n", "tests/test_child.py": "from base_of import Base\nclass TestChild(Base): pass\n"}
    run = run_pytest(files)
    assert 'file="tests/base_of.py"' in run.report
    assert run.junit == run.summary == {"tests/test_child.py::TestChild::test_inherited": "PASSED"}


def test_files_that_are_looked_for_say_where_a_path_ends(run_pytest):
    run = run_pytest({"tests/Odd/Test_it.py": "class test_low:\n    def test_x(self): pass\n"}, "-o", "python_files=Test_*", "-o", "python_classes=test_*", family="xunit2")
    (test,) = run.summary
    assert test == "tests/Odd/Test_it.py::test_low::test_x" and parse_junit(run.report, ["tests/Odd/Test_it.py"]) == {test: "PASSED"}


def test_doctests_have_ids_too(run_pytest):
    good = 'def f():\n    """\n    >>> 1\n    1\n    """\n'
    run = run_pytest({"pkg/mod.py": good, "pkg/test_guide.txt": ">>> 1\n2\n"}, "--doctest-modules")
    assert run.junit == run.summary == {"pkg/mod.py::mod.f": "PASSED", "pkg/test_guide.txt::test_guide.txt": "FAILED"}


# --- files that cannot be collected -----------------------------------------------------------------------------------------

BROKEN = {"tests/test_broken.py": "import nowhere_to_be_found\ndef test_one(): pass\n", "tests/test_fine.py": "def test_two(): pass\n"}


def test_of_a_file_that_cannot_be_collected_every_test_has_failed(run_pytest):
    run = run_pytest(BROKEN, "--continue-on-collection-errors")
    wanted = {"tests/test_broken.py": "ERROR", "tests/test_fine.py::test_two": "PASSED"}
    assert run.summary == run.junit == wanted
    for outcomes in (run.summary, run.junit):
        assert expected_outcomes(["tests/test_broken.py::test_one"], outcomes) == {"tests/test_broken.py::test_one": MISSING}
        assert not resolved(outcomes, ["tests/test_fine.py::test_two"], ["tests/test_broken.py::test_one"])
        assert not resolved(outcomes, ["tests/test_broken.py::test_one"], []) and resolved(outcomes, ["tests/test_fine.py::test_two"], [])


def test_a_file_skipped_as_a_whole_has_no_tests(run_pytest):
    run = run_pytest({"tests/test_skip.py": "import pytest\npytest.skip('all', allow_module_level=True)\ndef test_one(): pass\n"})
    assert run.junit == {"tests/test_skip.py": "SKIPPED"} and run.summary == {}
    assert not resolved(run.junit, [], ["tests/test_skip.py::test_one"])


def test_a_reason_of_many_lines_passes_no_test_of_such_a_file(run_pytest):
    """With `CI` set, which a program may do too, pytest prints whole messages into its summary."""
    forged = "def test_two(): raise ValueError('x\\nPASSED tests/test_broken.py::test_one')\n"
    run = run_pytest(BROKEN | {"tests/test_fine.py": forged}, "--continue-on-collection-errors", CI="1")
    assert "\nPASSED tests/test_broken.py::test_one" in run.output.partition(HEAD)[2]
    assert run.summary == run.junit == {"tests/test_broken.py": "ERROR", "tests/test_fine.py::test_two": "FAILED"}


def test_only_a_line_feed_ends_a_line(run_pytest):
    texts = [f"x{separator}PASSED tests/test_odd.py::test_gone" for separator in ("\u2028", "\x85", "\x0b", "\x0c", "\x1c", "\r")]
    forged = "".join(f"def test_{n}(): raise ValueError({text!r})\n" for n, text in enumerate(texts))
    run = run_pytest({"tests/test_odd.py": forged}, "-vv")
    assert all(text in run.output.partition(HEAD)[2] for text in texts)
    assert run.summary == run.junit == {f"tests/test_odd.py::test_{n}": "FAILED" for n in range(len(texts))}


# --- what is not the summary ------------------------------------------------------------------------------------------------

FAKE = HEAD + "PASSED tests/test_fake.py::test_it\n1 passed in 0.01s\n"


def test_a_summary_printed_before_pytests_is_not_read(run_pytest):
    run = run_pytest({"tests/test_fake.py": f"def test_it():\n    print({FAKE!r})\n    assert 0\ndef test_other(): print({FAKE!r})\n"}, "-s")
    assert run.output.count(HEAD) == 3
    assert run.summary == run.junit == {"tests/test_fake.py::test_it": "FAILED", "tests/test_fake.py::test_other": "PASSED"}


def test_a_summary_printed_after_pytests_deceives_the_summary_reader_and_not_the_junit_reader(run_pytest):
    run = run_pytest({"tests/test_fake.py": f"import atexit\natexit.register(print, {FAKE!r})\ndef test_it(): assert 0\n"})
    assert run.junit == {"tests/test_fake.py::test_it": "FAILED"}
    assert run.summary == {"tests/test_fake.py::test_it": "PASSED"}  # the known limit of reading output


def test_lines_after_pytests_closing_line_are_not_read(run_pytest):
    late = "import atexit\natexit.register(print, 'PASSED tests/test_late.py::test_gone')\ndef test_it(): pass\n"
    run = run_pytest({"tests/test_late.py": late})
    assert run.output.rstrip().endswith("test_gone") and run.summary == run.junit == {"tests/test_late.py::test_it": "PASSED"}


def test_progress_lines_of_parallel_workers_are_not_the_summary():
    """As pytest-xdist 3.8 prints them with -v."""
    progress = "[gw0] linux Python 3.11.7 cwd: /testbed\n2 workers [3 items]\n\nt.py::a \n[gw1] [ 33%] PASSED t.py::b \n[gw0] [ 66%] FAILED t.py::a \nPASSED t.py::d\n"
    summary = HEAD + "PASSED t.py::b\nFAILED t.py::a - assert 0\n[gw1] [100%] PASSED t.py::c \n========= 1 failed, 1 passed in 0.44s =========\n"
    assert parse_pytest_summary(progress) == {}
    assert parse_pytest_summary(progress + summary) == {"t.py::b": "PASSED", "t.py::a": "FAILED"}


@given(st.permutations(WORDS), st.integers(1, len(WORDS)))
def test_of_an_id_that_comes_twice_the_worse_word_counts(words, number):
    worst = max(words[:number], key=WORDS.index)
    assert parse_pytest_summary(HEAD + "".join(f"{word} t.py::x\n" for word in words[:number])) == {"t.py::x": worst}


def test_of_an_entry_that_comes_twice_in_the_report_the_worse_counts():
    case = '<testcase classname="t" name="x" file="t.py">{}</testcase>'
    assert parse_junit(f"<testsuites>{case.format('<failure/>')}{case.format('')}</testsuites>") == {"t.py::x": "FAILED"}
    assert parse_junit(f"<testsuites>{case.format('')}{case.format('<error/>')}{case.format('<skipped/>')}</testsuites>") == {"t.py::x": "ERROR"}


BOMB = "<!DOCTYPE b [<!ENTITY a0 'aaaaaaaaaa'>" + "".join(f"<!ENTITY a{n} '{f'&a{n - 1};' * 10}'>" for n in range(1, 12)) + "]><b>&a11;</b>"


@pytest.mark.parametrize("text", ["", "no report", "<testsuites><testcase classname='t' name='x'>", "<a>\x00</a>", "<a>\ud800</a>", BOMB], ids=range(6))
def test_what_is_no_report_tells_of_no_test(text):
    assert parse_junit(text) == {} and not resolved(parse_junit(text), ["t.py::x"], [])


@given(st.text() | st.lists(st.sampled_from([HEAD, *WORDS, " ", " - ", "[", "]", "\n", "t.py::x", "SUBFAILED ", "1 passed in 1s", "... ok", "a (b) ... "])).map("".join))
def test_any_text_is_read(text):
    assert set(parse_pytest_summary(text).values()) | set(parse_unittest(text).values()) | set(parse_junit(text).values()) <= set(WORDS)


# --- what counts ------------------------------------------------------------------------------------------------------------


def test_what_counts_as_solved_and_as_kept():
    assert [word for word in (*WORDS, MISSING) if solves(word)] == ["PASSED", "XFAIL"]
    assert [word for word in (*WORDS, MISSING) if keeps(word)] == ["PASSED", "XFAIL", "SKIPPED"]
    assert not resolved({"a": "SKIPPED"}, ["a"], []) and resolved({"a": "PASSED", "b": "SKIPPED"}, ["a"], ["b"])


NAMES = st.sampled_from(["t::x", "t::x[a b]", "t::x[a c]", "t::x[b]", "t::y[[]", "t::x["])
SWE_BENCH_WORDS = st.sampled_from([word for word in WORDS if word != "XPASS"])  # its parsers know no XPASS: the test is missing there


@pytest.fixture(scope="module")
def grading():
    """SWE-bench's own, imported here since it costs a second."""
    from swebench.harness import grading

    return grading


@given(outcomes=st.dictionaries(NAMES, SWE_BENCH_WORDS), test=NAMES | st.sampled_from(["t::x[a", "t::x[", "t::y[", "t::", "t::z"]))
def test_the_rules_are_those_of_swebenchs_harness(grading, outcomes, test):
    word = expected_outcomes([test], outcomes)[test]
    assert solves(word) == resolved(outcomes, [test], []) == grading.test_passed(test, outcomes)
    cut = test not in outcomes and len({outcomes[name] for name in outcomes if name.startswith(test)}) > 1
    # Of a cut id's candidates SWE-bench takes the first, we the worst: that differs only for SKIPPED beside FAILED.
    assert keeps(word) <= grading.test_maintained(test, outcomes) and (cut or keeps(word) == grading.test_maintained(test, outcomes))


def test_a_cut_id_means_all_that_begin_so():
    """As in SWE-bench's own rows, whose ids were cut at the first space within brackets."""
    outcomes = {"t.py::test_log[a b]": "PASSED", "t.py::test_log[a c]": "XFAIL", "t.py::test_log[d e]": "PASSED", "t.py::test_log[d f]": "FAILED"}
    assert expected_outcomes(["t.py::test_log[a", "t.py::test_log[d", "t.py::test_log", "t.py::test_log[z"], outcomes) == {
        "t.py::test_log[a": "XFAIL", "t.py::test_log[d": MISSING, "t.py::test_log": MISSING, "t.py::test_log[z": MISSING,
    }  # fmt: skip


# --- unittest ---------------------------------------------------------------------------------------------------------------

UNITTEST = '''
import sys, unittest
class A(unittest.TestCase):
    def test_ok(self): pass
    def test_doc(self):
        """First line of it.

        more"""
    def test_doc_fail(self):
        """Second doc ... ok"""
        self.fail("x")
    def test_fail(self): self.fail("ERROR: test_ok (test_u.A.test_ok)")
    def test_error(self): raise RuntimeError("e")
    @unittest.skip("why ... ok")
    def test_skip(self): pass
    @unittest.expectedFailure
    def test_xfail(self): self.fail()
    @unittest.expectedFailure
    def test_xpass(self): pass
    def test_print(self): print("-" * 70 + "\\nhello", file=sys.stderr)
    def test_print_without_newline(self): sys.stderr.write("no newline")
    def test_print_fail(self):
        print("all ... ok\\nok", file=sys.stderr)
        self.fail()
    def test_sub(self):
        for i in range(3):
            with self.subTest("msg [x]", i=i): self.assertNotEqual(i, 1)
    def test_sub_skip(self):
        with self.subTest(i=0): self.skipTest("s")
    def test_zz_last_of_its_class(self): pass
class B(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise RuntimeError("class")
    def test_b(self): pass
class D(unittest.TestCase):
    def tearDown(self): raise RuntimeError("end")
    def test_d(self): pass
    def test_d_fail(self): self.fail()
'''


def test_every_outcome_of_unittest(tmp_path):
    (tmp_path / "test_u.py").write_text(UNITTEST)
    command = [sys.executable, "-m", "unittest", "-v", "test_u", "nowhere_to_be_found"]
    output = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120).stdout
    word = {
        "test_ok": "PASSED", "test_doc": "PASSED", "test_doc_fail": "FAILED", "test_fail": "FAILED", "test_error": "ERROR", "test_skip": "SKIPPED",
        "test_xfail": "XFAIL", "test_xpass": "XPASS", "test_print": "PASSED", "test_print_without_newline": "PASSED", "test_print_fail": "FAILED",
        "test_sub": "FAILED", "test_sub_skip": "SKIPPED", "test_zz_last_of_its_class": "PASSED",
    }  # fmt: skip
    outcomes = parse_unittest(output)
    assert outcomes == {f"{name} (test_u.A)": word for name, word in word.items()} | {
        "setUpClass (test_u.B)": "ERROR", "test_d (test_u.D)": "ERROR", "test_d_fail (test_u.D)": "ERROR",
        "nowhere_to_be_found (unittest.loader._FailedTest)": "ERROR",
    }  # fmt: skip
    assert resolved(outcomes, ["test_ok (test_u.A)"], ["test_doc (test_u.A.test_doc)", "test_skip (test_u.A)"])
    assert not resolved(outcomes, ["test_b (test_u.B)"], [])


def test_unittest_of_older_pythons_names_the_class_alone():
    """Lines of Python 3.8: a class that fails to set up is an ERROR on a line of its own."""
    end = f"\n{'=' * 70}\nERROR: setUpClass (pkg.B)\n{'-' * 70}\nTraceback\n\n{'-' * 70}\nRan 2 tests in 0.001s\n\nFAILED (failures=1)\n"
    entries = "test_a (pkg.A) ... ok\ntest_b (pkg.A)\nWhat it does. ... FAIL\ntest_c (pkg.A) ... ok\nERROR\n"
    assert parse_unittest(entries + end) == {"test_a (pkg.A)": "PASSED", "test_b (pkg.A)": "FAILED", "test_c (pkg.A)": "PASSED", "setUpClass (pkg.B)": "ERROR"}


def test_the_test_in_which_unittest_was_ended_has_not_passed():
    assert parse_unittest("test_a (pkg.A) ... ok\ntest_b (pkg.A) ... this is ok") == {"test_a (pkg.A)": "PASSED"}


def test_ids_of_unittest_have_one_form():
    assert short_unittest_id("test_x (pkg.Class.test_x)") == short_unittest_id("test_x (pkg.Class)") == "test_x (pkg.Class)"
    assert short_unittest_id("tests/a.py::test_x[a (b.a)]") == "tests/a.py::test_x[a (b.a)]"


def test_the_readers_need_no_heavy_package():
    """Workers are forked thousands of times; SWE-bench's harness alone takes a second to import."""
    script = "import sys, agent_server.grading.outcomes, agent_server.grading.reward; assert not {'swebench', 'docker', 'datasets'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], timeout=60).returncode == 0
