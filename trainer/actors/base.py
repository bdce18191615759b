"""The actor's interface: training samples in, an optimizer step, weights out.

Invariant: an actor receives tokens, advantages and the engine's logprobs, never text and never a reward.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainer.records import Trace


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """A trace and the advantage of all its sampled tokens."""

    trace: Trace
    advantage: float


@dataclass(frozen=True, slots=True)
class StepReport:
    """Metrics of one optimizer step.

    `logprob_diff_mean` and `logprob_diff_max` are |engine - actor| over the sampled tokens, before the update.
    `grad_norm` is taken before clipping, `entropy` in nats. `updated` is False where the weights did not change:
    nothing to train, or a gradient that is not finite.
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
    """The loop's interface to the trained weights."""

    def step(self, groups: Sequence[Sequence[TrainingSample]]) -> StepReport:
        """One optimizer step on all groups. The samples of a group share a prompt, so they can be packed."""

    def save_weights(self, directory: Path) -> None:
        """Write weights, config and tokenizer in Hugging Face format, for the engine."""

    def save_state(self, directory: Path) -> None:
        """Write master weights and optimizer state, for a resume."""

    def load_state(self, directory: Path) -> None:
        """Continue from the state that `save_state` wrote."""
