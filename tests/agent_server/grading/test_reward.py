"""Reward modes and penalties: their formulas, what they promise of every outcome, and what a setting may say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_server.grading import reward
from agent_server.grading.outcomes import MISSING, OUTCOMES, expected_outcomes, is_maintained, is_passed, resolved

WORD = st.sampled_from((*OUTCOMES, MISSING))
LISTS = st.tuples(st.lists(WORD, max_size=5), st.lists(WORD, max_size=5))
MODE = st.sampled_from(sorted(reward.MODES))


def scored(mode: str, fail_to_pass: list[str], pass_to_pass: list[str], *, credible: bool = True) -> tuple[float, bool]:
    """The reward of tests that ended with these outcomes, and whether the session is resolved. `credible`: no limit was
    exceeded."""
    f2p, p2p = (
        {f"f{n}": outcome for n, outcome in enumerate(fail_to_pass)},
        {f"p{n}": outcome for n, outcome in enumerate(pass_to_pass)},
    )
    done = credible and resolved({**f2p, **p2p}, f2p, p2p)
    return reward.MODES[mode](f2p, p2p, done), done


P, F, S, M = "PASSED", "FAILED", "SKIPPED", MISSING


@pytest.mark.parametrize(
    ("fail_to_pass", "pass_to_pass", "binary", "partial_credit", "test_ratio", "shaped"),
    [
        ([P, P], [P, P], 1, 1, 1, 1),
        ([P, F], [P, P], 0, 1 / 2, 3 / 4, 1 / 4),
        ([P, S], [P, S], 0, 1 / 2, 3 / 4, 1 / 4),  # skipped: not solved, but kept
        ([P, "XFAIL"], [P, "XFAIL"], 1, 1, 1, 1),
        ([P, "XPASS"], [P, P], 0, 1 / 2, 3 / 4, 1 / 4),
        ([F, F], [P, P], 0, 0, 1 / 2, 0),  # a submission that changes nothing
        ([P, P], [P, F], 0, 0, 3 / 4, 1 / 4),  # a broken PASS_TO_PASS
        ([P, F], [F, F], 0, 0, 1 / 4, 0),
        ([M, M], [M, M], 0, 0, 0, 0),  # nothing ran
        ([P, F, F, F], [], 0, 1 / 4, 1 / 4, 1 / 8),  # no PASS_TO_PASS
        ([M, M], [], 0, 0, 0, 0),
        ([], [P, F], 0, 0, 1 / 2, 1 / 4),  # no FAIL_TO_PASS
        ([], [P, P], 1, 1, 1, 1),
    ],
)
def test_formulas(fail_to_pass, pass_to_pass, binary, partial_credit, test_ratio, shaped):
    got = {mode: scored(mode, fail_to_pass, pass_to_pass)[0] for mode in reward.MODES}
    assert got == {"binary": binary, "partial_credit": partial_credit, "test_ratio": test_ratio, "shaped": shaped}


@pytest.mark.parametrize("mode", reward.MODES)
def test_a_session_whose_tests_were_not_run_gets_nothing(mode):
    assert reward.MODES[mode]({}, {}, False) == 0.0


@pytest.mark.parametrize(
    ("mode", "number"), [("binary", 0), ("partial_credit", 1 / 2), ("test_ratio", 3 / 4), ("shaped", 1 / 2)]
)
def test_all_passed_and_yet_unresolved_is_less_than_one(mode, number):
    assert scored(mode, [P, P], [P, P], credible=False) == (number, False)


@given(MODE, LISTS, st.booleans())
def test_a_reward_lies_between_0_and_1_and_is_1_for_resolved_alone(mode, lists, credible):
    number, done = scored(mode, *lists, credible=credible)
    assert 0.0 <= number <= 1.0 and (number == 1.0) == done


@given(MODE, LISTS, st.booleans(), st.data())
def test_one_more_passing_test_never_lowers_a_reward(mode, lists, credible, data):
    before, _ = scored(mode, *lists, credible=credible)
    changed = [list(outcomes) for outcomes in lists]
    places = [
        (which, n)
        for which, outcomes in enumerate(changed)
        for n, outcome in enumerate(outcomes)
        if not (is_maintained if which else is_passed)(outcome)
    ]
    if places:
        which, place = data.draw(st.sampled_from(places))
        changed[which][place] = data.draw(st.sampled_from(["PASSED", "XFAIL"]))
    assert scored(mode, *changed, credible=credible)[0] >= before


@given(LISTS)
def test_modes_take_what_the_grader_records(lists):
    tests = [f"t{n}" for n in range(len(lists[0]) + 1)]
    outcomes = expected_outcomes(
        tests, dict(zip(tests, (outcome for outcome in lists[0] if outcome != MISSING), strict=False))
    )
    assert all(0.0 <= mode(outcomes, {}, False) < 1.0 for mode in reward.MODES.values())


def test_a_penalty_is_added_for_its_own_exit_status():
    penalties = {"LimitsExceeded": -0.5, "CommandFailed": -0.25, "CommandFailed: 2": -1.0}
    assert reward.penalized(0.75, "LimitsExceeded", penalties) == 0.25
    assert reward.penalized(0.0, "LimitsExceeded", penalties) == -0.5
    assert reward.penalized(1.0, "Submitted", penalties) == reward.penalized(1.0, "", penalties) == 1.0
    assert (
        reward.penalized(0.0, "CommandFailed: 1", penalties) == -0.25
        and reward.penalized(0.0, "CommandFailed: 2", penalties) == -1.0
    )
    assert reward.penalized(0.5, "LimitsExceeded", {}) == 0.5


@given(MODE, LISTS, st.floats(-1, 0))
def test_a_penalised_reward_lies_between_minus_1_and_1(mode, lists, penalty):
    number, _ = scored(mode, *lists)
    assert -1.0 <= reward.penalized(number, "X", {"X": penalty}) <= number
