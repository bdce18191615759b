"""The seam between the loop and whatever holds the trained weights.

Invariant: an actor sees tokens, advantages and the engine's logprobs; never text, never a reward.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainer.records import Trace


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """A trace and the one advantage that all its sampled tokens share."""

    trace: Trace
    advantage: float


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimizer step in figures. `logprob_diff_mean/max`: |engine - actor| over sampled tokens, before the update.

    `updated` is false where the weights stayed as they were: nothing to train, or a gradient that is not finite.
    """

    loss: float
    grad_norm: float
    entropy: float
    clip_fraction: float
    logprob_diff_mean: float
    logprob_diff_max: float
    n_tokens: int  # trained (sampled) tokens
    n_forward_tokens: int  # tokens that went through the model, after packing
    updated: bool = True


class Actor(Protocol):
    def step(self, groups: Sequence[Sequence[TrainingSample]]) -> StepReport:
        """One optimizer step on all groups; the samples of one inner sequence share a prompt (and so may be packed)."""

    def save_weights(self, directory: Path) -> None:
        """Write weights, config and tokenizer in Hugging Face format, as the engine loads them."""

    def save_state(self, directory: Path) -> None:
        """Write what a resume needs beyond the weights (master weights, optimizer)."""

    def load_state(self, directory: Path) -> None: ...
