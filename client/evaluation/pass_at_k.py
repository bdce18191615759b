"""pass@k and how sure it is.

Invariant: a pure function of its arguments; the bootstrap's seed is fixed, so the same results give the same interval.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

RESAMPLES = 2000
SEED = 0
COVERED = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean over `tasks` tasks. `low`, `high`: the interval that covers 95 %, or None where a bootstrap has nothing to say."""

    value: float
    low: float | None
    high: float | None
    tasks: int


def pass_at_k(samples: int, resolved: int, k: int) -> float:
    """The chance that at least one of k samples resolves the task, unbiased: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, arXiv:2107.03374).

    Raises ValueError where k is not within 1..samples or resolved not within 0..samples.
    """
    if not 1 <= k <= samples or not 0 <= resolved <= samples:
        raise ValueError(f"pass@{k} of {resolved} resolved in {samples} samples does not exist")
    return 1.0 - math.comb(samples - resolved, k) / math.comb(samples, k)


def estimate(counts: Sequence[tuple[int, int]], k: int) -> Estimate | None:
    """pass@k over tasks given as (samples, resolved); tasks with fewer than k samples are left out. None where no task is left.

    Interval: percentile bootstrap over tasks, 2000 resamples. There is none for fewer than two tasks, nor where all tasks have the
    same value: resampling equal values would claim to be certain.
    """
    values = [pass_at_k(samples, resolved, k) for samples, resolved in counts if samples >= k]
    if not values:
        return None
    if min(values) == max(values):
        return Estimate(values[0], None, None, len(values))
    chance = random.Random(SEED)
    means = sorted(fmean(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    tail = round(RESAMPLES * (1.0 - COVERED) / 2)
    return Estimate(fmean(values), means[tail], means[-1 - tail], len(values))


def ks(samples: int) -> list[int]:
    """The k that are reported for so many samples a task: powers of two, and the number itself."""
    return sorted({2**power for power in range(samples.bit_length()) if 2**power <= samples} | {samples})
