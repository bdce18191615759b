"""pass@k against enumeration and known cases; its confidence interval."""

import itertools
from fractions import Fraction

import pytest

from client.evaluation.pass_at_k import estimate, pass_at_k, reported_ks


@pytest.mark.parametrize("samples", range(1, 7))
def test_pass_at_k_is_the_share_of_draws_with_a_resolved_sample(samples):
    for resolved, k in itertools.product(range(samples + 1), range(1, samples + 1)):
        draws = list(itertools.combinations(range(samples), k))
        assert pass_at_k(samples, resolved, k) == pytest.approx(
            float(Fraction(sum(min(draw) < resolved for draw in draws), len(draws))), abs=1e-12
        )


def test_pass_at_k_of_known_cases():
    assert pass_at_k(5, 2, 1) == pytest.approx(0.4) and pass_at_k(10, 3, 5) == pytest.approx(1 - 21 / 252)
    assert pass_at_k(200, 1, 100) == pytest.approx(0.5)
    for impossible in ((3, 1, 4), (3, 4, 1), (3, -1, 1), (3, 1, 0)):
        with pytest.raises(ValueError, match="does not exist"):
            pass_at_k(*impossible)


def test_an_estimate_is_over_tasks_with_enough_samples():
    counts = [(4, 4), (4, 2), (4, 0), (1, 1)]
    result = estimate(counts, 2)
    assert (result.value, result.tasks) == (pytest.approx((1 + 5 / 6 + 0) / 3), 3)
    assert 0.0 <= result.low < result.value < result.high <= 1.0 and result == estimate(counts, 2)
    assert estimate([(1, 1)], 2) is None and estimate([], 1) is None


def test_the_interval_matches_the_bootstraps_distribution():
    """50 tasks, half of them resolved: the mean of a resample is binomial, 2.5 % of it below 18/50."""
    result = estimate([(1, 1)] * 25 + [(1, 0)] * 25, 1)
    assert result.low == pytest.approx(0.36, abs=0.021) and result.high == pytest.approx(0.64, abs=0.021)


@pytest.mark.parametrize("counts", [[(2, 1)], [(2, 0), (2, 0)], [(2, 2), (2, 2), (2, 2)]])
def test_no_interval_for_one_task_or_equal_values(counts):
    assert estimate(counts, 1).low is None and estimate(counts, 1).high is None


def test_the_reported_ks():
    assert [reported_ks(samples) for samples in (1, 2, 3, 8, 10)] == [
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2, 4, 8],
        [1, 2, 4, 8, 10],
    ]
