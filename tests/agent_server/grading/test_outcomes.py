"""SWE-bench's rules for outcomes, held against its own harness."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_server.grading.outcomes import (
    MISSING,
    OUTCOMES,
    expected_outcomes,
    failing,
    is_maintained,
    is_passed,
    resolved,
    short_unittest_id,
)


def test_passed_and_maintained_outcomes():
    assert [outcome for outcome in (*OUTCOMES, MISSING) if is_passed(outcome)] == ["PASSED", "XFAIL"]
    assert [outcome for outcome in (*OUTCOMES, MISSING) if is_maintained(outcome)] == ["PASSED", "XFAIL", "SKIPPED"]
    assert not resolved({"a": "SKIPPED"}, ["a"], []) and resolved({"a": "PASSED", "b": "SKIPPED"}, ["a"], ["b"])


NAMES = st.sampled_from(["t::x", "t::x[a b]", "t::x[a c]", "t::x[b]", "t::y[[]", "t::x["])


SWE_BENCH_WORDS = st.sampled_from(
    [outcome for outcome in OUTCOMES if outcome != "XPASS"]
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
    outcome = expected_outcomes([test], outcomes)[test]
    assert is_passed(outcome) == resolved(outcomes, [test], []) == grading.test_passed(test, outcomes)
    cut = test not in outcomes and len({outcomes[name] for name in outcomes if name.startswith(test)}) > 1
    # Of a cut id's candidates SWE-bench takes the first, we the worst: that differs only for SKIPPED beside FAILED.
    assert is_maintained(outcome) <= grading.test_maintained(test, outcomes) and (
        cut or is_maintained(outcome) == grading.test_maintained(test, outcomes)
    )


def test_a_cut_id_stands_for_all_ids_that_begin_so():
    """As in SWE-bench's own rows, whose ids were cut at the first space within brackets."""
    outcomes = {
        "t.py::test_log[a b]": "PASSED",
        "t.py::test_log[a c]": "XFAIL",
        "t.py::test_log[d e]": "PASSED",
        "t.py::test_log[d f]": "FAILED",
    }
    assert expected_outcomes(
        ["t.py::test_log[a", "t.py::test_log[d", "t.py::test_log", "t.py::test_log[z"], outcomes
    ) == {
        "t.py::test_log[a": "XFAIL",
        "t.py::test_log[d": MISSING,
        "t.py::test_log": MISSING,
        "t.py::test_log[z": MISSING,
    }


def test_ids_of_unittest_have_one_form():
    assert (
        short_unittest_id("test_x (pkg.Class.test_x)")
        == short_unittest_id("test_x (pkg.Class)")
        == "test_x (pkg.Class)"
    )
    assert short_unittest_id("tests/a.py::test_x[a (b.a)]") == "tests/a.py::test_x[a (b.a)]"


def test_a_missing_or_skipped_test_is_a_failed_one():
    assert resolved({"a": "PASSED", "b": "PASSED"}, ["a"], ["b"])
    assert (
        not resolved({"a": "PASSED"}, ["a"], ["b"])
        and not resolved({"a": "XPASS"}, ["a"], [])
        and not resolved({}, ["a"], [])
    )


def test_failing_lists_only_the_tests_that_do_not_count():
    assert failing({"a": "XFAIL", "b": "SKIPPED"}, {"c": "XFAIL", "d": "SKIPPED", "e": "XPASS"}) == ("b", "e")
    assert failing({"a": "PASSED", "b": MISSING}, {"c": "PASSED", "d": MISSING}) == ("b", "d")


def test_parsers_import_no_heavy_package():
    """Workers are forked thousands of times; SWE-bench's harness alone takes a second to import."""
    modules = "agent_server.grading.canary, agent_server.grading.run_tests, agent_server.grading.reward"
    script = f"import sys, {modules}; assert not {{'swebench', 'docker', 'datasets'}} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[3], timeout=60).returncode == 0
