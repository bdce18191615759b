"""pass@k and its confidence interval.

Invariant: pure functions; the bootstrap's seed is fixed, so the same results give the same interval.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

RESAMPLES = 2000
SEED = 0
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean over `tasks` tasks. `low`, `high`: the 95 % interval, None where a bootstrap gives none."""

    value: float
    low: float | None
    high: float | None
    tasks: int


def pass_at_k(samples: int, resolved: int, k: int) -> float:
    """Unbiased probability that at least one of k samples resolves the task: 1 - C(n-c, k) / C(n, k).

    Chen et al. 2021, arXiv:2107.03374. Raises ValueError unless k is in 1..samples and resolved in 0..samples.
    """
    if not 1 <= k <= samples or not 0 <= resolved <= samples:
        raise ValueError(f"pass@{k} of {resolved} resolved in {samples} samples does not exist")
    return 1.0 - math.comb(samples - resolved, k) / math.comb(samples, k)


def estimate(counts: Sequence[tuple[int, int]], k: int) -> Estimate | None:
    """pass@k over tasks, each as (samples, resolved). Excludes tasks with fewer than k samples; None if none is left.

    Interval: percentile bootstrap over tasks, 2000 resamples. There is none for fewer than two tasks, or if all tasks
    have the same value: resampling equal values would give an interval of width 0.
    """
    values = [pass_at_k(samples, resolved, k) for samples, resolved in counts if samples >= k]
    if not values:
        return None
    if min(values) == max(values):
        return Estimate(values[0], None, None, len(values))
    rng = random.Random(SEED)
    means = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    tail = round(RESAMPLES * (1.0 - CONFIDENCE) / 2)
    return Estimate(fmean(values), means[tail], means[-1 - tail], len(values))


def reported_ks(samples: int) -> list[int]:
    """The values of k in a report with this many samples per task: the powers of two, and the number itself."""
    return sorted({2**power for power in range(samples.bit_length()) if 2**power <= samples} | {samples})
