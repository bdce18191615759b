"""The junit report: doubled entries, pytest 3, and text that is no report."""

import pytest

from agent_server.grading.outcomes import resolved
from agent_server.grading.reports.junit import parse_junit


def test_the_junit_report_of_pytest_3():
    entry = (
        '<testcase classname="t.TestC.TestInner.()" file="t.py" name="test_x"><skipped message="{}"{}>wh'
        "y</skipped></testcase>"
    )
    assert parse_junit(entry.format("expected test failure", "")) == {"t.py::TestC::TestInner::test_x": "XFAIL"}
    assert parse_junit(entry.format("expected test failure", ' type="pytest.skip"')) == {
        "t.py::TestC::TestInner::test_x": "SKIPPED"
    }


def test_the_worse_of_two_entries_counts():
    case = '<testcase classname="t" name="x" file="t.py">{}</testcase>'
    assert parse_junit(f"<testsuites>{case.format('<failure/>')}{case.format('')}</testsuites>") == {
        "t.py::x": "FAILED"
    }
    assert parse_junit(f"<testsuites>{case.format('<error/>')}{case.format('<skipped/>')}</testsuites>") == {
        "t.py::x": "ERROR"
    }
    assert parse_junit(case.format("<skipped/><failure/><skipped/>")) == {"t.py::x": "FAILED"}  # subtests


BOMB = (
    "<!DOCTYPE b [<!ENTITY a0 'aaaaaaaaaa'>"
    + "".join(f"<!ENTITY a{n} '{f'&a{n - 1};' * 10}'>" for n in range(1, 12))
    + "]><b>&a11;</b>"
)


NO_REPORTS = ["", "no report", "<testsuites><testcase classname='t' name='x'>", "<a>\x00</a>", "<a>\ud800</a>", BOMB]


@pytest.mark.parametrize("text", NO_REPORTS, ids=range(len(NO_REPORTS)))
def test_text_that_is_no_report_reports_no_test(text):
    assert parse_junit(text) == {} and not resolved(parse_junit(text), ["t.py::x"], [])
