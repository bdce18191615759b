"""Losses of the actor: the clipped policy gradient and supervised fine-tuning.

Invariant: a loss sums over its tokens and divides by `n_total`, the number of trained tokens in the whole batch. So the
losses of any split into microbatches add up to the batch's loss, and every token has the same weight.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class PolicyLoss(NamedTuple):
    """`loss` is a differentiable scalar. The other fields have no gradient and cover the same tokens."""

    loss: Tensor
    n_clipped: int
    logprob_diff_sum: float
    logprob_diff_max: float


def clipped_policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, n_total: int, clip_low: float, clip_high: float
) -> PolicyLoss:
    """`-sum_t min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t) / n_total`.

    `r_t = exp(logprob_t - old_logprob_t)` is the probability ratio, `A_t` the token's advantage. This is PPO's clipped
    surrogate (Schulman et al. 2017, arXiv:1707.06347, equation 7) with the token-level mean and the asymmetric clip of
    DAPO (Yu et al. 2025, arXiv:2503.14476, equation 8: clip_low 0.2, clip_high 0.28).

    `logprobs`, `old_logprobs` and `advantages` are `[T]`. Logprobs are natural-log; the old ones are the engine's.
    `n_clipped` counts the tokens whose gradient is zero because of the clip.
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
    """`-sum_t logprob_t / n_total`, the cross-entropy of supervised fine-tuning: `logprobs [T]` in, a scalar out."""
    return -logprobs.sum() / n_total
