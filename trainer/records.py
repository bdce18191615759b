"""Records of rollouts: token traces, samples and groups, as frozen data.

Invariant (token in, token out): the tokens are the ids that the engine received and sampled, in its own order.
Nothing in the trainer turns text back into tokens to recover them.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one origin: prompt (`sampled=False`) or sampled by the engine (`sampled=True`).

    `parent` is the index, in the same trace, of the segment that this one follows; -1: it begins a context.
    `logprobs` has one natural-log probability per token, in the model's own distribution; empty unless sampled.
    `version` is that of the weights that sampled it (0: the initial weights); -1 unless sampled.
    `finish_reason` is the engine's (`stop`, `length`); "" unless sampled.
    """

    parent: int
    sampled: bool
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    version: int = -1
    finish_reason: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """A session's token tree. Parents precede their children; each path from root to leaf is one engine sequence."""

    segments: tuple[Segment, ...] = ()
    n_calls: int = 0

    def n_sampled(self) -> int:
        """Number of sampled tokens in the whole tree, each counted once."""
        return sum(len(s.tokens) for s in self.segments if s.sampled)


@dataclass(frozen=True, slots=True)
class Sample:
    """One completed session: its trace, and reward, exit status and metadata from the agent server.

    A session that failed is no sample, so `reward` never stands for an infrastructure failure.
    """

    session_id: str
    group_id: str
    reward: float
    exit_status: str
    trace: Trace
    metadata: dict = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """The samples of one task row. Advantages are relative to this set."""

    group_id: str
    samples: tuple[Sample, ...]
