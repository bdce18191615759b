"""Reward modes: a number for training from the outcomes of a session's tests. Penalties by the agent's exit status.

Invariant: before penalties every mode lies in [0, 1], is 1 exactly for a resolved session, and never falls when one
more test passes. No mode and no penalty changes whether a session is `resolved`.

A mode is a function of the outcomes of the FAIL_TO_PASS tests, those of the PASS_TO_PASS tests (both by test id,
MISSING included, as `outcomes.expected_outcomes` returns them; empty where no test was run) and `resolved`. In its
formula `f` is the share of FAIL_TO_PASS tests that pass (`outcomes.is_passed`), `p` the share of PASS_TO_PASS tests
that still do (`outcomes.is_maintained`). The share of an empty list is 1, as in SWE-bench's `compute_fail_to_pass`. A
session may be unresolved although each test has passed (its tests exceeded a limit of the sandbox): then one test less
counts as passed.
"""

from collections.abc import Callable, Mapping

from agent_server.grading.outcomes import is_maintained, is_passed

Outcomes = Mapping[str, str]  # by test id
RESOLVED_SHARE = 0.5  # of the reward in `shaped` that only a resolved session gets


def binary(fail_to_pass: Outcomes, pass_to_pass: Outcomes, resolved: bool) -> float:
    """1 if resolved, else 0: SWE-bench's measure, and what R2E-Gym and SkyRL train on."""
    return float(resolved)


def partial_credit(fail_to_pass: Outcomes, pass_to_pass: Outcomes, resolved: bool) -> float:
    """`f` if `p` is 1, else 0: a broken PASS_TO_PASS test, or one that was not run, takes everything. A submission that
    changes nothing gets 0. Without FAIL_TO_PASS tests this is `binary`."""
    if not all(map(is_maintained, pass_to_pass.values())):
        return 0.0
    return _share(sum(map(is_passed, fail_to_pass.values())), len(fail_to_pass), resolved)


def test_ratio(fail_to_pass: Outcomes, pass_to_pass: Outcomes, resolved: bool) -> float:
    """The share of all expected tests, of both lists, that pass; 0 where no test was run. The densest mode, and the
    only one that rewards a submission that changes nothing, with the share of the PASS_TO_PASS tests."""
    passed = sum(map(is_passed, fail_to_pass.values())) + sum(map(is_maintained, pass_to_pass.values()))
    return _share(passed, len(fail_to_pass) + len(pass_to_pass), resolved)


def shaped(fail_to_pass: Outcomes, pass_to_pass: Outcomes, resolved: bool) -> float:
    """1 if resolved, else (1 - RESOLVED_SHARE) * f * p: half for partial progress, half for resolving the row. A broken
    PASS_TO_PASS test costs its share, not everything. A submission that changes nothing gets 0, and so does one whose
    tests did not run. Without FAIL_TO_PASS tests the progress is `p` alone."""
    if resolved or not (fail_to_pass or pass_to_pass):
        return float(resolved)
    f = sum(map(is_passed, fail_to_pass.values())) / len(fail_to_pass) if fail_to_pass else 1.0
    p = sum(map(is_maintained, pass_to_pass.values())) / len(pass_to_pass) if pass_to_pass else 1.0
    return (1 - RESOLVED_SHARE) * f * p


def _share(passed: int, total: int, resolved: bool) -> float:
    if resolved or total == 0:
        return float(resolved)
    return min(passed, total - 1) / total


MODES: dict[str, Callable[[Outcomes, Outcomes, bool], float]] = {
    mode.__name__: mode for mode in (binary, partial_credit, test_ratio, shaped)
}


def penalized(reward: float, exit_status: str, penalties: Mapping[str, float]) -> float:
    """`reward` plus the penalty of the session's agent exit status, if it has one; from -1 to 1. A status with a detail
    (`CommandFailed: 2`) has its own penalty, or else that of the part before the colon."""
    return reward + penalties.get(exit_status, penalties.get(exit_status.partition(":")[0], 0.0))
