"""Group-normalised advantages: the formula, and groups without variance."""

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.algorithms.advantages import grpo_advantages

REWARDS = st.lists(st.floats(-10, 10).map(lambda r: round(r, 3)), min_size=1, max_size=16)


def test_two_of_four_resolved():
    assert grpo_advantages([1.0, 0.0, 0.0, 1.0]) == [1.0, -1.0, -1.0, 1.0]


@pytest.mark.parametrize("rewards", [[], [1.0], [0.0] * 8, [0.1] * 3])  # 0.1 * 3 / 3 is not 0.1 in floats
def test_no_variance_gives_exact_zeros(rewards):
    assert grpo_advantages(rewards) == [0.0] * len(rewards)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_rejected(bad):
    with pytest.raises(ValueError, match="finite"):
        grpo_advantages([1.0, bad])


@given(REWARDS)
def test_mean_zero_deviation_one_order_kept(rewards):
    advantages = grpo_advantages(rewards)
    if min(rewards) == max(rewards):
        return
    assert statistics.fmean(advantages) == pytest.approx(0, abs=1e-6)
    assert statistics.pstdev(advantages) == pytest.approx(1, rel=1e-6)
    for (r1, a1), (r2, a2) in itertools.pairwise(zip(rewards, advantages, strict=True)):
        assert (r1 < r2) == (a1 < a2)
