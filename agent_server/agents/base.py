"""What a session wants from an agent, and what it gets back.

Invariant: an AgentResult is the agent's own ending, good or bad; a failure of model or sandbox is raised, never returned.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from agent_server.sandboxes.base import Sandbox
from client.errors import SandboxLimitExceeded


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """Where the agent's model calls go: an OpenAI-compatible API, and the key that says whose session it is."""

    base_url: str
    api_key: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class AgentResult:
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


class Agent(Protocol):
    """What works on a session. May have `sandbox_env`: extra variables of its sandbox, and of the one that grades its work."""

    sandbox_env: Mapping[str, str] = {}

    def run(
        self,
        problem_statement: str,
        sandbox: Sandbox,
        endpoint: ModelEndpoint,
        *,
        agent_timeout_s: float,
        command_timeout_s: float,
        trajectory: Path,
        seconds: dict[str, float],
    ) -> AgentResult:
        """Work on the repository in /testbed until done, within `agent_timeout_s`. Called once, in a process of the session's own.

        A submission that is empty though `submitted` means the repository's diff. What it did goes to the file `trajectory`
        (which must not hold the endpoint's key) and as phases' durations into `seconds`. A KeyboardInterrupt is a cancel: let it
        through. Raises ModelError, SandboxError, AgentError for what is not the agent's own ending.
        """
