"""Reads the outcomes that a plain run prints, and the lines that two runs must have in common."""

import re

from agent_server.grading.outcomes import record_worse, short_unittest_id

WORDS = "PASSED|FAILED|SKIPPED|XFAIL|XPASS|ERROR"
# "a.py::test_x SKIPPED (reason)   [ 50%]", and xdist's "[gw0] [ 50%] PASSED a.py::test_x"
VERBOSE = re.compile(rf"^(\S.*?::.*?) ({WORDS})(?: \(.*\))? *(?:\[ *\d+%\])?$")
WORKER = re.compile(rf"^\[gw\d+\] (?:\[ *\d+%\] )?({WORDS}) (.*::.*?) ?$")
# "a.py::test_x SUBFAILED[message] (n=1)", or the plugin's "a.py::test_x [message] (n=1) SUBFAIL"
SUBTEST = re.compile(r"^(\S.*?::\S+) (?:.* )?SUBFAIL(?:ED)?\b")
SUMMARY = re.compile(r"^(?:SUBFAILED(?:[\[(].*?[\])])*|[\[(].*[\])] SUBFAIL) (\S+::\S+)")
UNITTEST = {
    "ok": "PASSED", "FAIL": "FAILED", "ERROR": "ERROR", "skipped": "SKIPPED", "expected failure": "XFAIL",
    "unexpected success": "XPASS",
}  # fmt: skip
UNITTEST_LINE = re.compile(rf"^(\w+ \([\w.]+\)).*? \.\.\. .*?({'|'.join(UNITTEST)})(?: ['\"].*)?$")
FAIL_HEAD = re.compile(r"^(FAIL|ERROR): (\w+ \([\w.]+\))")
VARYING = (
    (r"\d+\.\d+ ?s(econds)?\b|\d+(\.\d+)?ms\b|=?[\d.]+=setup.*", "TIME"),
    (r"0x[0-9a-f]+", "ADDRESS"),
    (r"(pid[=:]? ?|pytest-|gw|seed=|--randomly-seed=|popen-|thread |Thread-|at line )\d+", r"\1N"),
    (r"-+ generated xml file: .*", "XML"),
    (r"/tmp/\.[\w.]+: line \d+: +\d+ ", "SCRIPT "),
    (r"\[ *\d+%\]", "SHARE"),
    (r"=+", "="),
)


def pytest_outcomes(log: str) -> dict[str, str]:
    """Outcome by node id, from lines of `pytest -v`."""
    outcomes: dict[str, str] = {}
    for line in re.sub(r"\x1b\[[0-9;]*m", "", log).split("\n"):
        if match := VERBOSE.match(line):
            record_worse(outcomes, match[1], match[2])
        elif match := SUBTEST.match(line) or SUMMARY.match(line):
            record_worse(outcomes, match[1], "FAILED")
        elif match := WORKER.match(line):
            record_worse(outcomes, match[2], match[1])
    return outcomes


def unittest_outcomes(log: str) -> dict[str, str]:
    """Outcome by `test_x (pkg.Class)`, from lines of `unittest -v`. A docstring may stand between id and outcome."""
    outcomes: dict[str, str] = {}
    joined = re.sub(r"^(\w+ \([\w.]+\))\n(?=\S.* \.\.\. )", r"\1 ", log, flags=re.MULTILINE)
    for line in joined.split("\n"):
        if match := UNITTEST_LINE.match(line):
            record_worse(outcomes, short_unittest_id(match[1]), UNITTEST[match[2]])
        elif match := FAIL_HEAD.match(line):
            record_worse(outcomes, short_unittest_id(match[2]), UNITTEST[match[1]])
    return outcomes


def common_lines(log: str, *, is_ordered: bool) -> list[str]:
    """The lines of a log without what differs between any two runs."""
    for pattern, replacement in VARYING:
        log = re.sub(pattern, replacement, log)
    lines = log.split("\n")
    return lines if is_ordered else sorted(lines)
