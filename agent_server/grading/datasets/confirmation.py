"""Confirms printed outcomes by the test runner's own report.

Invariant: a pass that was only printed is no pass, since the code under test can print too.
"""

import re
from collections.abc import Iterable, Mapping

from agent_server.grading.datasets.base import TestRun
from agent_server.grading.outcomes import MISSING, short_unittest_id

UNITTEST_ID = re.compile(r"\w+ \([\w.]+\)$")


def runs_pytest(script: str) -> bool:
    """Whether the script runs pytest, and so leaves a junit report."""
    return "pytest" in script or "py.test" in script


def confirmed_by_runner(printed: Mapping[str, str], tests: Iterable[str], script: str, run: TestRun) -> dict[str, str]:
    """The printed outcomes without the passes that the runner itself did not report.

    The runner is pytest where `script` runs it, and unittest where the ids of `tests` are unittest's. In SWE-bench the
    id of a test with a docstring is that docstring; then only whether any test ran can be checked.
    """
    if runs_pytest(script):
        return {
            test: outcome
            for test, outcome in printed.items()
            if outcome != "PASSED" or _passed_in_report(test, run.pytest_outcomes or {})
        }
    if not any(UNITTEST_ID.match(test) for test in tests):
        return dict(printed)
    if not run.unittest_outcomes:
        return {}
    reported = {
        test: run.unittest_outcomes.get(short_unittest_id(test), MISSING) for test in printed if UNITTEST_ID.match(test)
    }
    return {
        test: outcome
        for test, outcome in printed.items()
        if outcome != "PASSED" or reported.get(test, "PASSED") == "PASSED"
    }


def _passed_in_report(test: str, report: Mapping[str, str]) -> bool:
    """Whether the report has the test as passed. swebench's parsers cut ids at a space; a cut id stands for all ids
    that begin so, and each of them must have passed."""
    if test in report or test.count("[") == test.count("]"):
        return report.get(test) == "PASSED"
    candidates = [name for name in report if name.startswith(test)]
    return bool(candidates) and all(report[name] == "PASSED" for name in candidates)
