"""Group-relative advantages.

Invariant: an advantage depends on the rewards of one group only. A group without variance has advantages of exactly 0.
"""

import math
from collections.abc import Sequence


def grpo_advantages(rewards: Sequence[float]) -> list[float]:
    """Advantages `A_i = (r_i - mean(r)) / std(r)` of one group: G rewards in, G advantages out, in the same order.

    The outcome-supervised advantage of GRPO (Shao et al. 2024, "DeepSeekMath", arXiv:2402.03300, section 4.1.2), with
    the population's standard deviation. Where all rewards are equal, std is 0 and every advantage is exactly 0.0; the
    loop leaves such a group out. Raises ValueError for a reward that is not finite.
    """
    if not all(math.isfinite(r) for r in rewards):
        raise ValueError(f"rewards must be finite, not {list(rewards)}; leave failed samples out of the group")
    if not rewards or min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    std = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / len(rewards))
    return [(r - mean) / std for r in rewards]
