"""Parsers of unittest's verbose output, and of the report that unittest_recorder.py writes.

Invariant: a test has passed only by its own entry, and of two entries the worse counts.
"""

import json
import re

from agent_server.grading.outcomes import OUTCOMES, record_worse, short_unittest_id
from agent_server.grading.reports.pytest_summary import CONTROL_SEQUENCE

# " [message] (i=1)": a subtest
ENTRY_START = re.compile(r" {0,2}(\w+ \([\w.<>]+\))(?: [\[(].*?[\])])?(?: \.\.\. ?|$)")
ENTRIES_END = re.compile(r"^(?:={70}\n[A-Z ]+: |-{70}\nRan \d)", re.MULTILINE)
FAILURE_HEAD = re.compile(r"^={70}\n(FAIL|ERROR|UNEXPECTED SUCCESS): (\w+ \([\w.<>]+\))", re.MULTILINE)
ENTRY_END = re.compile(r"(ok|FAIL|ERROR|expected failure|unexpected success)$|(?:^|\.\.\. )(skipped) ['\"].*$")
UNITTEST_OUTCOMES = {
    "ok": "PASSED", "FAIL": "FAILED", "ERROR": "ERROR", "skipped": "SKIPPED", "expected failure": "XFAIL",
    "unexpected success": "XPASS", "UNEXPECTED SUCCESS": "XPASS",
}  # fmt: skip


def parse_unittest_output(output: str) -> dict[str, str]:
    """Outcome by `test_x (pkg.Class)`, from the output (both streams) of `python -m unittest -v`.

    Longer ids, as Python 3.11 prints them, are shortened. A test's entry begins with its id and ends with its outcome;
    between them may stand its docstring's first line and what it printed. Failures listed below the entries count as
    well; where nothing stands below, the run was ended, in its last test. What a test prints on a line of its own in
    just this form is read as an entry. Rows of SWE-bench that name a `log_parser` need that one instead: where a test
    has a docstring, their ids are the docstring.
    """
    text = CONTROL_SEQUENCE.sub("", output).replace("\r\n", "\n")
    end = ENTRIES_END.search(text)
    outcomes: dict[str, str] = {}
    test = outcome = ""
    for line in text[: end.start() if end else None].split("\n"):
        start = ENTRY_START.match(line)
        if start:
            _record(outcomes, test, outcome)
            test, outcome = start[1], ""
        if match := ENTRY_END.search(line[start.end() :] if start else line):
            # ERROR alone, after the outcome: setUpClass of the next class. The test's own would be listed below.
            outcome = outcome if outcome and line == "ERROR" and end else match[1] or match[2]
        elif line:
            outcome = ""
    if end:
        _record(outcomes, test, outcome)
        for kind, failed_test in FAILURE_HEAD.findall(text, end.start()):
            _record(outcomes, failed_test, kind)
    return outcomes


def parse_unittest_report(lines: str) -> dict[str, str]:
    """Outcome by `test_x (pkg.Class)`, from unittest_recorder.py's report: a JSON list of id and outcome per line."""
    outcomes: dict[str, str] = {}
    for line in lines.splitlines():
        try:
            name, outcome = json.loads(line)
            path, _, method = name.rpartition(".")
        except (ValueError, TypeError, AttributeError, RecursionError):
            continue  # the process ended in the middle of the line, or another process wrote it
        if outcome in OUTCOMES:
            record_worse(outcomes, f"{method} ({path})", outcome)
    return outcomes


def _record(outcomes: dict[str, str], test: str, outcome: str) -> None:
    if test and outcome:
        record_worse(outcomes, short_unittest_id(test), UNITTEST_OUTCOMES[outcome])
