"""The printed summary: forged, doubled and foreign lines, older versions and plugins."""

from hypothesis import given
from hypothesis import strategies as st

from agent_server.grading.outcomes import OUTCOMES
from agent_server.grading.reports.pytest_summary import parse_pytest_summary

HEAD = "=========================== short test summary info ============================\n"


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
        "tests/a.py::test_one": "PASSED",
        "tests/a.py::test_two[a - b]": "PASSED",
        "tests/a.py::test_three[x y]": "FAILED",
        "tests/a.py::test_four": "ERROR",
        "tests/a.py::test_five": "XFAIL",
    }
    assert parse_pytest_summary("PASSED tests/a.py::test_one\n") == {}


OLDER = """
PASSED t.py::TestU::test_sub
PASSED t.py::test_two
PASSED t.py::test_g
SKIPPED [1] t.py:21: no - way
XFAIL t.py::test_a - reason:\x20
XFAIL t.py::test_b
  reason: of pytest 5
XFAIL t.py::test_c - reason: [NOTRUN] not run
XPASS t.py::test_d was known
XPASS t.py::test_e[a b] was - known
XPASS t.py::test_f\x20
SUBFAILED t.py::test_g - assert 0
[m - x] (i=1) SUBFAIL t.py::TestU::test_sub - AssertionError: ...
(k='[v] - w') SUBFAIL t.py::test_two - assert 0
(i=0) SUBSKIP [2] t.py:6: nope
==== 3 failed, 2 passed, 1 skipped, 3 xfailed, 3 xpassed in 0.10 seconds ====
"""


def test_the_summary_of_older_pytests_and_of_the_subtests_plugin():
    """Lines of pytest 4.6 to 7.4 and of pytest-subtests, which this environment's pytest writes otherwise."""
    assert parse_pytest_summary(HEAD + OLDER) == {
        "t.py::TestU::test_sub": "FAILED",
        "t.py::test_two": "FAILED",
        "t.py::test_g": "FAILED",
        "t.py::test_a": "XFAIL",
        "t.py::test_b": "XFAIL",
        "t.py::test_c": "XFAIL",
        "t.py::test_d": "XPASS",
        "t.py::test_e[a b]": "XPASS",
        "t.py::test_f": "XPASS",
    }


@given(st.permutations(OUTCOMES), st.integers(1, len(OUTCOMES)))
def test_the_worst_of_several_lines_counts(outcomes, number):
    worst = max(outcomes[:number], key=OUTCOMES.index)
    assert parse_pytest_summary(HEAD + "".join(f"{outcome} t.py::x\n" for outcome in outcomes[:number])) == {
        "t.py::x": worst
    }


def test_lines_may_end_as_a_terminal_ends_them():
    assert parse_pytest_summary(f"{HEAD}PASSED t.py::x\n1 passed in 1s\n".replace("\n", "\r\n")) == {
        "t.py::x": "PASSED"
    }


def test_only_a_line_feed_ends_a_line(run_pytest):
    texts = [
        f"x{separator}PASSED tests/test_odd.py::test_gone"
        for separator in ("\u2028", "\x85", "\x0b", "\x0c", "\x1c", "\r")
    ]
    forged = "".join(f"def test_{n}(): raise ValueError({text!r})\n" for n, text in enumerate(texts))
    run = run_pytest({"tests/test_odd.py": forged}, "-vv")
    assert all(text in run.output.partition(HEAD)[2] for text in texts)
    assert run.summary == run.reported == {f"tests/test_odd.py::test_{n}": "FAILED" for n in range(len(texts))}


FAKE = HEAD + "PASSED tests/test_fake.py::test_it\n1 passed in 0.01s\n"


def test_a_summary_printed_before_pytests_is_not_read(run_pytest):
    failing = f"def test_it():\n    print({FAKE!r})\n    assert 0\n"
    run = run_pytest({"tests/test_fake.py": f"{failing}def test_other(): print({FAKE!r})\n"}, "-s")
    assert run.output.count(HEAD) == 3
    assert (
        run.summary
        == run.reported
        == {"tests/test_fake.py::test_it": "FAILED", "tests/test_fake.py::test_other": "PASSED"}
    )


def test_a_summary_printed_after_pytests_is_read_and_does_not_change_the_report(run_pytest):
    run = run_pytest(
        {"tests/test_fake.py": f"import atexit\natexit.register(print, {FAKE!r})\ndef test_it(): assert 0\n"}
    )
    assert run.reported == {"tests/test_fake.py::test_it": "FAILED"}
    assert run.summary == {"tests/test_fake.py::test_it": "PASSED"}  # the known limit of reading output


def test_lines_after_pytests_closing_line_are_not_read(run_pytest):
    late = "import atexit\natexit.register(print, 'PASSED tests/test_late.py::test_gone')\ndef test_it(): pass\n"
    run = run_pytest({"tests/test_late.py": late})
    assert run.output.rstrip().endswith("test_gone") and run.summary == run.reported == {
        "tests/test_late.py::test_it": "PASSED"
    }


def test_progress_lines_of_parallel_workers_are_not_the_summary():
    """As pytest-xdist 3.8 prints them with -v."""
    progress = (
        "[gw0] linux Python 3.11.7 cwd: /testbed\n2 workers [3 items]\n\nt.py::a \n[gw1] "
        "[ 33%] PASSED t.py::b \nPASSED t.py::d\n"
    )
    summary = HEAD + (
        "PASSED t.py::b\nFAILED t.py::a - assert 0\n[gw1] [100%] PASSED t.py::c \n========= "
        "1 failed, 1 passed in 0.44s =========\n"
    )
    assert parse_pytest_summary(progress) == {}
    assert parse_pytest_summary(progress + summary) == {"t.py::b": "PASSED", "t.py::a": "FAILED"}


PIECES = st.sampled_from([HEAD, *OUTCOMES, " ", " - ", "[", "]", "\n", "t.py::x", "SUBFAILED", "1 passed in 1s"])


@given(st.text() | st.lists(PIECES).map("".join))
def test_any_text_is_parsed(text):
    assert set(parse_pytest_summary(text).values()) <= set(OUTCOMES)
