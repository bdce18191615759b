"""Losses: values by hand, gradients against the policy-gradient theorem, microbatches against the whole batch."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.algorithms.losses import clipped_policy_loss, sft_loss

CLIP = (0.2, 0.28)


def one_token(ratio: float, advantage: float):
    """Loss, its gradient with respect to the logprob, and whether the token counts as clipped."""
    logprob = torch.tensor([-1.0 + math.log(ratio)], dtype=torch.float64, requires_grad=True)
    policy = clipped_policy_loss(
        logprob, torch.tensor([-1.0], dtype=torch.float64), torch.tensor([advantage], dtype=torch.float64), 1, *CLIP
    )
    policy.loss.backward()
    return policy.loss.item(), logprob.grad.item(), policy.n_clipped


@pytest.mark.parametrize(
    "ratio, advantage, loss, gradient, n_clipped",
    [
        (1.0, 2.0, -2.0, -2.0, 0),
        (1.25, 1.0, -1.25, -1.25, 0),  # between 1 + clip_low and 1 + clip_high: not clipped
        (1.5, 1.0, -1.28, 0.0, 1),  # a good token above the upper clip
        (1.5, -1.0, 1.5, 1.5, 0),  # a bad token that became likelier has its full gradient
        (0.5, -1.0, 0.8, 0.0, 1),  # a bad token below the lower clip
        (0.5, 1.0, -0.5, -0.5, 0),
        (3.0, 0.0, 0.0, 0.0, 0),
    ],
)
def test_one_token_by_hand(ratio, advantage, loss, gradient, n_clipped):
    assert one_token(ratio, advantage) == (pytest.approx(loss), pytest.approx(gradient), n_clipped)


@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(0, 20))
def test_any_split_adds_up_to_the_whole_batch(seed, n, cut):
    torch.manual_seed(seed)
    logprobs, old, advantages = (torch.randn(n, dtype=torch.float64) for _ in range(3))
    cut = min(cut, n)
    whole = clipped_policy_loss(logprobs, old, advantages, n, *CLIP)
    parts = [clipped_policy_loss(logprobs[s], old[s], advantages[s], n, *CLIP) for s in (slice(cut), slice(cut, None))]
    assert sum(p.loss.item() for p in parts) == pytest.approx(whole.loss.item())
    assert sum(p.n_clipped for p in parts) == whole.n_clipped
    assert sum(p.logprob_diff_sum for p in parts) == pytest.approx(whole.logprob_diff_sum)
    assert (
        max(p.logprob_diff_max for p in parts)
        == whole.logprob_diff_max
        == pytest.approx((logprobs - old).abs().max().item())
    )


def test_on_policy_the_gradient_is_that_of_advantage_weighted_logprobs():
    logprobs = torch.tensor([-0.5, -2.0, -1.0], requires_grad=True)
    advantages = torch.tensor([1.0, -0.5, 2.0])
    clipped_policy_loss(logprobs, logprobs.detach().clone(), advantages, 3, *CLIP).loss.backward()
    assert torch.allclose(logprobs.grad, -advantages / 3)


def test_the_sft_loss_is_the_mean_negative_logprob():
    assert sft_loss(torch.tensor([-1.0, -3.0]), 4).item() == 1.0
