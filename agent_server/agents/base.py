"""What a session wants from an agent, and what it gets back.

Invariant: an Outcome is the agent's own ending, good or bad; a failure of model or sandbox is raised, never returned.
"""

from dataclasses import dataclass
from typing import Self

from client.errors import SandboxLimitExceeded


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """Where the agent's model calls go: an OpenAI-compatible API, and the key that says whose session it is."""

    base_url: str
    api_key: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """`exit_status`: the agent's word for its ending, or `SandboxLimitExceeded: LIMIT`. `submitted` tells an empty submission
    from none."""

    exit_status: str
    submitted: bool
    submission: str
    n_calls: int

    @classmethod
    def over_limit(cls, exceeded: SandboxLimitExceeded, n_calls: int) -> Self:
        """The ending of an agent whose sandbox was ended for what ran in it."""
        return cls(f"SandboxLimitExceeded: {exceeded.limit}", False, "", n_calls)
