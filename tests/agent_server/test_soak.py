"""Short run of scripts/bench/soak.py: sessions with cancels and kills leave nothing behind."""

import pytest

from scripts.bench.soak import soak


@pytest.mark.slow(minutes=2)
def test_cancels_and_kills_leave_nothing_behind():
    outcome, leaks = soak(50, 4, seed=1)
    assert sum(outcome.values()) == 50 and {status for _, status in outcome} >= {"completed", "cancelled"}
    assert not any(leaks.values()), leaks
