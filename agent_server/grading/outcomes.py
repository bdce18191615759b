"""What each test did, read from pytest's own summary.

Invariant: a test counts as passed only by its own PASSED line in the summary; one that is absent has failed.
"""

import re
from collections.abc import Iterable

SUMMARY_HEAD = re.compile(r"^=+ short test summary info =+$")
# "PASSED id", but "FAILED id - reason"; an id may itself hold " - " in its brackets.
RESULT = re.compile(r"^(?:(PASSED) (.+)|(FAILED|ERROR|XFAIL|XPASS) ([^\s\[]+(?:\[.*?\])?)(?: - .*)?)$")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def parse_pytest_summary(output: str) -> dict[str, str]:
    """Test id to PASSED, FAILED, ERROR, XFAIL or XPASS, from the last `-rA` summary in `output`; empty without one."""
    lines = [COLOUR.sub("", line).rstrip() for line in output.splitlines()]
    heads = [number for number, line in enumerate(lines) if SUMMARY_HEAD.match(line)]
    if not heads:
        return {}
    found: dict[str, str] = {}
    for line in lines[heads[-1] + 1 :]:
        if match := RESULT.match(line):
            status, test = (group for group in match.groups() if group)
            # An id reported twice (call and teardown) keeps its worse word.
            found[test] = status if found.get(test, "PASSED") == "PASSED" else found[test]
    return found


def resolved(outcomes: dict[str, str], fail_to_pass: Iterable[str], pass_to_pass: Iterable[str]) -> bool:
    """SWE-bench's rule: every test that should pass now, and every one that passed before, has passed."""
    return all(outcomes.get(test) == "PASSED" for test in (*fail_to_pass, *pass_to_pass))
