"""Reports joined from the reporter's lines: which sessions count, and when a report is whole."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_server.grading.reporter.report import RunReport, parse_report

SCRIPT, SECRET = 10, "s"


def session(
    name: str, pid: int, *above: int, kind: str = "main", file: str = "t.py", outcome: str = "passed", end=True
):
    ancestors = ",".join(map(str, (pid, *above)))
    lines = [
        f"{name}\topen\tpytest\t{kind}\t{ancestors}\t/testbed",
        f"{name}\troot\t/testbed",
        f"{name}\titem\t{file}::test_x\t/testbed/{file}\tFunction\t/testbed/{file}\t{file}::test_x",
        f"{name}\tphase\t{file}::test_x\tcall\t{outcome}\t",
    ]
    return "\n".join([*lines, f"{name}\tclose"] if end else lines) + "\n"


def signed(lines: str) -> str:
    """The lines as one process writes them."""
    numbered = [f"p\t{number}\t{line}" for number, line in enumerate(lines.splitlines())]
    return "".join(f"{line}\t{zlib.crc32(f'{SECRET}{line}'.encode())}\n" for line in numbered)


def parse(lines: str) -> RunReport:
    return parse_report(signed(lines), SCRIPT, "/testbed", SECRET)


def outcomes(*sessions: str) -> dict[str, str]:
    report = parse("".join(sessions))
    return {test.id: test.outcome for test in report.tests} if report.is_whole else {}


def test_the_worse_of_two_runs_counts():
    first, second = session("a", 20, SCRIPT), session("b", 21, SCRIPT, outcome="failed")
    assert outcomes(first, second) == outcomes(second, first) == {"t.py::test_x": "FAILED"}


def test_reports_of_two_runs_are_joined():
    both = outcomes(
        session("a", 20, SCRIPT), session("b", 21, 20, SCRIPT, kind="nested"), session("c", 22, SCRIPT, file="u.py")
    )
    assert both == {"t.py::test_x": "PASSED", "u.py::test_x": "PASSED"}


def test_a_run_that_a_test_starts_does_not_count():
    outer, inner = session("a", 20, SCRIPT, outcome="failed"), session("b", 25, 24, 20, SCRIPT)
    assert outcomes(outer, inner) == {"t.py::test_x": "FAILED"}
    assert outcomes(inner, session("a", 20, SCRIPT, end=False)) == {}


def test_a_process_that_left_the_scripts_tree_does_not_count():
    assert outcomes(session("a", 20, 1)) == {}


def test_a_session_that_did_not_end_vouches_for_nothing():
    torn = parse(session("a", 20, SCRIPT, end=False) + session("b", 21, SCRIPT))
    assert not torn.is_whole and torn.was_started and torn.fault == "pytest (pid 20) did not end its session"


def test_workers_of_xdist_report_for_their_controller():
    controller = "a\topen\tpytest\tmain\t20,10\t/testbed\na\tclose\n"
    worker = session("w", 21, 20, SCRIPT, kind="worker", end=False)
    assert outcomes(worker, controller) == {"t.py::test_x": "PASSED"}
    of_a_test = session("b", 30, 21, 20, SCRIPT), session("v", 31, 30, 21, 20, SCRIPT, kind="worker", file="v.py")
    assert outcomes(*of_a_test, worker, controller) == {"t.py::test_x": "PASSED"}


def test_nothing_is_reported_by_nothing():
    report = parse("")
    assert report == RunReport() and not report.is_whole and not report.was_started


@pytest.mark.parametrize(
    ("field", "outcome"), [("defined_in", "passed"), ("skipped_in", "skipped"), ("skipped_in", "xfailed")]
)
def test_what_the_submission_defines_or_skips_has_failed(field, outcome):
    lines = session("a", 20, SCRIPT, outcome=outcome)
    if field == "defined_in":
        lines = lines.replace("Function\t/testbed/t.py", "Function\t/testbed/pkg/core.py")
    else:
        lines = lines.replace(f"{outcome}\t", f"{outcome}\t/testbed/pkg/core.py")
    report = parse(lines)
    assert [test.outcome for test in report.without_forged({"pkg/core.py"}).tests] == ["FAILED"]
    assert report.without_forged({"pkg/other.py"}) == report


FIELDS = st.sampled_from(
    ["a", "open", "item", "phase", "case", "close", "pytest", "main", "10", "passed", "\\ud83d", "\\x"]
)


@given(st.text() | st.lists(st.lists(FIELDS).map("\t".join)).map("\n".join))
def test_any_lines_are_read(lines):
    parse_report(lines, SCRIPT, "/testbed", SECRET)
    parse(lines)


def test_a_report_that_was_changed_is_not_whole():
    lines = signed(session("a", 20, SCRIPT, outcome="failed"))
    first, *rest = lines.splitlines(keepends=True)
    changed = (
        lines.replace("failed", "passed"),
        f"{first}{first}{''.join(rest)}",
        first + "".join(rest[1:]),
        lines + "x\n",
    )
    for text in changed:
        report = parse_report(text, SCRIPT, "/testbed", SECRET)
        assert report.fault == "something else wrote to the report", text
    assert parse_report(lines, SCRIPT, "/testbed", SECRET).is_whole
