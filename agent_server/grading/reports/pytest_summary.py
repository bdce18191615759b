"""Parser of pytest's `-rA` summary.

Invariant: a test has passed only by its own line of the last summary, and of two lines the worse counts.

A summary that the code under test prints after pytest's own (by an `atexit` function) is read: use the junit report
where there is one.
"""

import re
from collections.abc import Mapping
from itertools import takewhile

from agent_server.grading.outcomes import MAINTAINED, OUTCOMES, record_worse

CONTROL_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # colours and the like
SUMMARY_HEAD = re.compile(r"=+ short test summary info =+")
# "2 failed, 1 passed in 0.10s", with = around it or without
SUMMARY_END = re.compile(r"(?:=+ )?\d+ [a-z].* in \d[\d.]* ?s")
# "SUBFAILED[message] (i=1) id", or the plugin's form
SUBTEST = r"SUBFAILED(?:[\[(].*?[\])])? (?=[^\[\]()]*::)|[\[(].*?[\])] SUBFAIL "
RESULT = re.compile(rf"(?:({'|'.join(OUTCOMES)}) (?:at (?:setup|call|teardown) of )?|{SUBTEST})(.+)")
MAX_ID_CHARACTERS = 4096  # characters; reasons may be far longer
FOLDED = re.compile(r"\[\d+\] ")  # "SKIPPED [2] file.py:7: reason" names no test


def parse_pytest_summary(output: str) -> dict[str, str]:
    """Outcome by node id, from the last `-rA` summary in `output`; empty without one.

    Skipped tests appear only with pytest's `--no-fold-skipped`. The last summary counts, so one that a test prints is
    not read. Lines after pytest's closing line are not the summary's. Where a file could not be collected, none of its
    tests has passed, whatever other lines show: with `CI` set or `-vv`, reasons have many lines, of any content.
    """
    # Not splitlines: a reason may hold U+2028.
    lines = [CONTROL_SEQUENCE.sub("", line).removesuffix("\r") for line in output.split("\n")]
    heads = [number for number, line in enumerate(lines) if SUMMARY_HEAD.fullmatch(line)]
    if not heads:
        return {}
    outcomes: dict[str, str] = {}
    for line in takewhile(lambda line: not SUMMARY_END.match(line), lines[heads[-1] + 1 :]):
        match = RESULT.fullmatch(line)
        if match and not FOLDED.match(match[2]):
            outcome = match[1] or "FAILED"  # of a subtest; the test itself may be reported as PASSED
            test = match[2] if outcome == "PASSED" else _without_reason(match[2], outcome, outcomes)
            record_worse(outcomes, test, outcome)
    broken = {test for test, outcome in outcomes.items() if outcome == "ERROR" and "::" not in test}
    return {
        test: outcome
        for test, outcome in outcomes.items()
        if outcome not in MAINTAINED or test.split("::")[0] not in broken
    }


def _without_reason(text: str, outcome: str, known: Mapping[str, str]) -> str:
    """The id in "id - reason" (XPASS of pytest 7: "id reason").

    Ids may hold ` - ` in their brackets, and reasons brackets: the longest beginning that is a known id, else the
    shortest that may be one.
    """
    separator = " " if outcome == "XPASS" else " - "
    beginnings = [text[: match.start()] for match in re.finditer(separator, text[:MAX_ID_CHARACTERS])] + [text]
    known_ids = [beginning for beginning in beginnings if beginning in known]
    possible_ids = (beginning for beginning in beginnings if "[" not in beginning or beginning.endswith("]"))
    return known_ids[-1] if known_ids else next(possible_ids, text)
