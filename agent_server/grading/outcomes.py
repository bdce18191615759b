"""Outcomes of tests, and SWE-bench's rules for what resolves a row.

Invariant: a test has passed only by its own entry in a runner's report. A test without an entry is MISSING and has
failed, and of two entries the worse counts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

OUTCOMES = ("PASSED", "XFAIL", "SKIPPED", "XPASS", "FAILED", "ERROR")  # from best to worst
MISSING = "MISSING"  # of an expected test that the runner did not report
PASSING = frozenset({"PASSED", "XFAIL"})
MAINTAINED = PASSING | {"SKIPPED"}


class Reported(Protocol):
    """A test that a runner reported."""

    @property
    def outcome(self) -> str: ...


def is_passed(outcome: str) -> bool:
    """Whether a FAIL_TO_PASS test counts. SWE-bench's rule (`test_passed` of its harness): PASSED and XFAIL do;
    SKIPPED, XPASS, FAILED, ERROR and MISSING do not."""
    return outcome in PASSING


def is_maintained(outcome: str) -> bool:
    """Whether a PASS_TO_PASS test counts. SWE-bench's rule (`test_maintained`): as in `is_passed`, and SKIPPED too,
    since a skipped test is no regression."""
    return outcome in MAINTAINED


def resolved(outcomes: Mapping[str, str], fail_to_pass: Iterable[str], pass_to_pass: Iterable[str]) -> bool:
    """Whether every test that should pass now does, and every one that passed before still does: SWE-bench's rule.
    `outcomes`: by test id, as the parsers in reports/ return them."""
    return not failing(expected_outcomes(fail_to_pass, outcomes), expected_outcomes(pass_to_pass, outcomes))


def all_passed(tests: Iterable[str], outcomes: Mapping[str, str]) -> bool:
    """Whether each test has passed, neither skipped nor failed as expected."""
    return all(outcome == "PASSED" for outcome in expected_outcomes(tests, outcomes).values())


def failing(fail_to_pass: Mapping[str, str], pass_to_pass: Mapping[str, str]) -> tuple[str, ...]:
    """The tests whose outcome does not count. Both mappings: outcome by test id, from `expected_outcomes`."""
    not_fixed = (test for test, outcome in fail_to_pass.items() if not is_passed(outcome))
    return (*not_fixed, *(test for test, outcome in pass_to_pass.items() if not is_maintained(outcome)))


def expected_outcomes(tests: Iterable[str], outcomes: Mapping[str, str]) -> dict[str, str]:
    """The outcome of each test in `tests`, in their order; MISSING where there is none.

    Hundreds of SWE-bench's ids are cut within their brackets (`test_log[a` of `test_log[a b]`). SWE-bench's rule for
    those: they stand for all ids that begin so, if these agree on having passed; where they do not, the test is
    MISSING. Of those that agree the worst outcome is returned.
    """
    return {test: _find(short_unittest_id(test), outcomes) for test in tests}


def outcomes_by_name(tests: Sequence[Reported], names: Sequence[tuple[str, ...]]) -> dict[str, str]:
    """Outcome by id, from the outcome and the ids of each test, the surest id first. A later id counts where it is the
    first id of no test. Of tests that share an id the worst outcome counts."""
    surest: dict[str, str] = {}
    for test, ids in zip(tests, names, strict=True):
        for id in ids[:1]:
            record_worse(surest, short_unittest_id(id), test.outcome)
    others: dict[str, str] = {}
    for test, ids in zip(tests, names, strict=True):
        for id in map(short_unittest_id, ids[1:]):
            if id not in surest:
                record_worse(others, id, test.outcome)
    return others | surest


def select_named(names: Sequence[tuple[str, ...]], tests: Iterable[str]) -> list[int]:
    """Positions in `names`, the ids of each reported test, of those that the row's `tests` name. The row's ids may be
    cut within their brackets."""
    wanted = {short_unittest_id(test) for test in tests}
    cut = tuple(test for test in wanted if _is_cut(test))
    return [
        position
        for position, ids in enumerate(names)
        if any(short_unittest_id(id) in wanted or id.startswith(cut) for id in ids)
    ]


def record_worse(outcomes: dict[str, str], test: str, outcome: str) -> None:
    """Record an outcome of `test`, unless a worse one is recorded already."""
    outcomes[test] = max(outcomes.get(test, outcome), outcome, key=OUTCOMES.index)


def short_unittest_id(test: str) -> str:
    """`test_x (pkg.Class.test_x)`, as Python 3.11 and later print it, as `test_x (pkg.Class)`; other ids unchanged."""
    return re.sub(r"^(\w+) \(([\w.<>]+)\.\1\)$", r"\1 (\2)", test)


def _is_cut(test: str) -> bool:
    return test.count("[") > test.count("]")


def _find(test: str, outcomes: Mapping[str, str]) -> str:
    if test in outcomes or not _is_cut(test):
        return outcomes.get(test, MISSING)
    candidates = {outcome for name, outcome in outcomes.items() if name.startswith(test)}
    agree = len(set(map(is_passed, candidates))) == 1
    return max(candidates, key=OUTCOMES.index) if agree else MISSING
