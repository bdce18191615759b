"""What the actor minimises, as pure functions on tensors.

Invariant: a loss sums over the tokens it is given and divides by `n_total`, the number of trained tokens in the whole
batch. So the sum over any split into microbatches is the batch's loss, and every token weighs the same.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class PolicyLoss(NamedTuple):
    """`loss` (scalar, differentiable) and figures without gradient: sums over the given tokens."""

    loss: Tensor
    n_clipped: int
    logprob_diff_sum: float
    logprob_diff_max: float


def clipped_policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, n_total: int, clip_low: float, clip_high: float
) -> PolicyLoss:
    """`-sum_t min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t) / n_total` with `r_t = exp(logprob - old_logprob)`.

    PPO's clipped surrogate (Schulman et al. 2017, equation 7) with the token-level mean and the asymmetric clip of DAPO
    (Yu et al. 2025, equation 8: clip_low 0.2, clip_high 0.28). All three tensors are `[T]`; `old_logprobs` are those
    of the engine that sampled. A token counts as clipped where its gradient is zero for that reason.
    """
    log_ratio = logprobs - old_logprobs
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = -torch.minimum(ratio * advantages, clipped * advantages).sum() / n_total
    with torch.no_grad():
        difference = log_ratio.abs()
        n_clipped = int((clipped * advantages < ratio * advantages).sum())
    return PolicyLoss(loss, n_clipped, float(difference.sum()), float(difference.max()) if difference.numel() else 0.0)


def sft_loss(logprobs: Tensor, n_total: int) -> Tensor:
    """`-sum_t logprob_t / n_total`: the cross-entropy of supervised fine-tuning. `logprobs` is `[T]`; a scalar returns."""
    return -logprobs.sum() / n_total
