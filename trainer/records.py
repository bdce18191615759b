"""What a rollout leaves behind: token traces, samples and groups, as plain frozen data.

Invariant (token in, token out): the tokens here are the ids the engine saw and sampled, in its own order; nothing
in the trainer turns text back into tokens to find them.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens with one origin: given to the engine (`sampled=False`) or sampled by it (`sampled=True`).

    `parent` is the index, in the same trace, of the segment this one follows (-1: it begins a context).
    `logprobs` has one natural-log probability a token, in the engine's own distribution, and is empty unless sampled.
    `version` counts the weights that sampled it (0: the initial weights; -1 when not sampled).
    `finish_reason` is the engine's (`stop`, `length`) for a sampled segment, else "".
    """

    parent: int
    sampled: bool
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    version: int = -1
    finish_reason: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """A session's token tree. A parent stands before its children; root to leaf is exactly one engine sequence."""

    segments: tuple[Segment, ...] = ()
    n_calls: int = 0

    def n_sampled(self) -> int:
        """Number of sampled tokens in the whole tree, each counted once."""
        return sum(len(s.tokens) for s in self.segments if s.sampled)


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished session: its trace and what the agent server said of it. `reward` is never an infrastructure failure."""

    session_id: str
    group_id: str
    reward: float
    exit_status: str
    trace: Trace
    metadata: dict = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """The samples of one task row; advantages are relative to this set."""

    group_id: str
    samples: tuple[Sample, ...]
