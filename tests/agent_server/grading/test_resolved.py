"""What counts as passed: SWE-bench's rules, held against its own harness; doubled entries; texts that are no report."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_server.grading.outcomes import MISSING, OUTCOMES, expected_outcomes, is_maintained, is_passed, resolved
from agent_server.grading.reports.junit import parse_junit
from agent_server.grading.reports.pytest_summary import parse_pytest_summary


def test_what_counts_as_solved_and_as_kept():
    assert [word for word in (*OUTCOMES, MISSING) if is_passed(word)] == ["PASSED", "XFAIL"]
    assert [word for word in (*OUTCOMES, MISSING) if is_maintained(word)] == ["PASSED", "XFAIL", "SKIPPED"]
    assert not resolved({"a": "SKIPPED"}, ["a"], []) and resolved({"a": "PASSED", "b": "SKIPPED"}, ["a"], ["b"])


NAMES = st.sampled_from(["t::x", "t::x[a b]", "t::x[a c]", "t::x[b]", "t::y[[]", "t::x["])
SWE_BENCH_WORDS = st.sampled_from(
    [word for word in OUTCOMES if word != "XPASS"]
)  # its parsers know no XPASS: the test is missing there


@pytest.fixture(scope="module")
def grading():
    """SWE-bench's own, imported here since it costs a second."""
    from swebench.harness import grading

    return grading


@given(
    outcomes=st.dictionaries(NAMES, SWE_BENCH_WORDS),
    test=NAMES | st.sampled_from(["t::x[a", "t::x[", "t::y[", "t::", "t::z"]),
)
def test_the_rules_are_those_of_swebenchs_harness(grading, outcomes, test):
    word = expected_outcomes([test], outcomes)[test]
    assert is_passed(word) == resolved(outcomes, [test], []) == grading.test_passed(test, outcomes)
    cut = test not in outcomes and len({outcomes[name] for name in outcomes if name.startswith(test)}) > 1
    # Of a cut id's candidates SWE-bench takes the first, we the worst: that differs only for SKIPPED beside FAILED.
    assert is_maintained(word) <= grading.test_maintained(test, outcomes) and (
        cut or is_maintained(word) == grading.test_maintained(test, outcomes)
    )


def test_a_cut_id_means_all_that_begin_so():
    """As in SWE-bench's own rows, whose ids were cut at the first space within brackets."""
    outcomes = {
        "t.py::test_log[a b]": "PASSED",
        "t.py::test_log[a c]": "XFAIL",
        "t.py::test_log[d e]": "PASSED",
        "t.py::test_log[d f]": "FAILED",
    }
    assert expected_outcomes(["t.py::test_log[a", "t.py::test_log[d", "t.py::test_log", "t.py::test_log[z"], outcomes) == {
        "t.py::test_log[a": "XFAIL", "t.py::test_log[d": MISSING, "t.py::test_log": MISSING, "t.py::test_log[z": MISSING,
    }  # fmt: skip


# --- entries that come twice, and texts that are no report -------------------------------------------------------------------

HEAD = "=== short test summary info ===\n"


@given(st.permutations(OUTCOMES), st.integers(1, len(OUTCOMES)))
def test_of_an_id_that_comes_twice_the_worse_word_counts(words, number):
    worst = max(words[:number], key=OUTCOMES.index)
    assert parse_pytest_summary(HEAD + "".join(f"{word} t.py::x\n" for word in words[:number])) == {"t.py::x": worst}


def test_of_an_entry_that_comes_twice_in_the_report_the_worse_counts():
    case = '<testcase classname="t" name="x" file="t.py">{}</testcase>'
    assert parse_junit(f"<testsuites>{case.format('<failure/>')}{case.format('')}</testsuites>") == {
        "t.py::x": "FAILED"
    }
    assert parse_junit(f"<testsuites>{case.format('<error/>')}{case.format('<skipped/>')}</testsuites>") == {
        "t.py::x": "ERROR"
    }
    assert parse_junit(case.format("<skipped/><failure/><skipped/>")) == {"t.py::x": "FAILED"}  # subtests


def test_files_that_are_looked_for_go_with_the_file_of_the_entry():
    entry = '<testcase classname="Odd.Test_it.test_low" name="x" file="base.py"/>'
    assert parse_junit(entry, ["Odd/Test_it.py"]) == {"Odd/Test_it.py::test_low::x": "PASSED"}


def test_lines_may_end_as_a_terminal_ends_them():
    assert parse_pytest_summary(f"{HEAD}PASSED t.py::x\n1 passed in 1s\n".replace("\n", "\r\n")) == {
        "t.py::x": "PASSED"
    }


BOMB = (
    "<!DOCTYPE b [<!ENTITY a0 'aaaaaaaaaa'>"
    + "".join(f"<!ENTITY a{n} '{f'&a{n - 1};' * 10}'>" for n in range(1, 12))
    + "]><b>&a11;</b>"
)


NO_REPORTS = ["", "no report", "<testsuites><testcase classname='t' name='x'>", "<a>\x00</a>", "<a>\ud800</a>", BOMB]


@pytest.mark.parametrize("text", NO_REPORTS, ids=range(len(NO_REPORTS)))
def test_what_is_no_report_tells_of_no_test(text):
    assert parse_junit(text) == {} and not resolved(parse_junit(text), ["t.py::x"], [])


PIECES = st.sampled_from([HEAD, *OUTCOMES, " ", " - ", "[", "]", "\n", "t.py::x", "SUBFAILED", "1 passed in 1s"])


@given(st.text() | st.lists(PIECES).map("".join))
def test_any_text_is_read(text):
    assert set(parse_pytest_summary(text).values()) | set(parse_junit(text).values()) <= set(OUTCOMES)


def test_the_readers_need_no_heavy_package():
    """Workers are forked thousands of times; SWE-bench's harness alone takes a second to import."""
    modules = "agent_server.grading.reports.junit, agent_server.grading.run_tests, agent_server.grading.reward"
    script = f"import sys, {modules}; assert not {{'swebench', 'docker', 'datasets'}} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[3], timeout=60).returncode == 0
