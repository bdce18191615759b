"""Interface between a session and the agent that works on it. A custom agent implements it:

    class MyAgent:
        def run(self, problem_statement, sandbox, endpoint, *,
                agent_timeout_s, command_timeout_s, trajectory, seconds):
            ...                                              # call the model at `endpoint`
            sandbox.run("sed -i ...", cwd="/testbed", timeout_s=command_timeout_s)
            return AgentResult("Submitted", submitted=True, submission="", n_calls=1)

Select it with AGENT_SERVER_AGENT=my_module:MyAgent. The class takes no constructor arguments.
Invariant: an AgentResult is an ending caused by the agent; a failure of the model or the sandbox is raised instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from agent_server.sandboxes.base import Sandbox
from client.errors import ContextLengthExceeded, ConversationRefused, ModelError, SandboxLimitExceeded

TIME_EXCEEDED = "TimeExceeded"  # exit status of an agent whose time is over
MEMORY_EXCEEDED = "WorkerMemoryExceeded"  # exit status of an agent for which its worker has no memory
# Exit statuses of agents whose conversation the model's API refuses, by what client.refusals finds.
REFUSED: Mapping[type[ModelError], str] = {
    ContextLengthExceeded: "ContextWindowExceeded",
    ConversationRefused: "ConversationRefused",
}


class AgentTimeout(KeyboardInterrupt):
    """Raised in Agent.run where it outlasts its time, in whatever call it is.

    A KeyboardInterrupt, because libraries let that pass: handlers of Exception do not catch it, and mini-swe-agent's
    retries, which catch everything else, do not repeat it.
    """


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """OpenAI-compatible API for the agent's model calls: POST `base_url` + /v1/chat/completions.

    `api_key` is the bearer token. It identifies the session and must not enter the sandbox.
    """

    base_url: str
    api_key: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class AgentResult:
    """Result of one agent run.

    `exit_status`: the agent's own name for its ending, for example `Submitted`, `TimeExceeded`, `LimitsExceeded`.
    `submitted`: whether the agent submitted at all. Without it, no tests run and the reward is 0.
    `submission`: a unified diff; empty although `submitted` means the diff of the repository in /testbed.
    `n_calls`: the model calls that were answered; None where that is unknown.
    """

    exit_status: str
    submitted: bool
    submission: str
    n_calls: int | None

    @classmethod
    def timed_out(cls, n_calls: int | None) -> Self:
        """Result of an agent whose time is over. It has submitted nothing."""
        return cls(TIME_EXCEEDED, False, "", n_calls)

    @classmethod
    def out_of_memory(cls, n_calls: int | None) -> Self:
        """Result of an agent for which its worker has no memory: what the policy makes it hold has no other bound."""
        return cls(MEMORY_EXCEEDED, False, "", n_calls)

    @classmethod
    def over_limit(cls, exceeded: SandboxLimitExceeded, n_calls: int | None) -> Self:
        """Result of an agent whose commands exceeded a sandbox limit, so that the sandbox was killed."""
        return cls(f"SandboxLimitExceeded: {exceeded.limit}", False, "", n_calls)


class Agent(Protocol):
    """Program that works on one session.

    An agent may have the attribute `sandbox_env`: a mapping of extra variables for its commands in the sandbox.
    """

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
        """Work on the repository in /testbed. Called once, in the main thread of the session's own process.

        `agent_timeout_s`: seconds for the whole run. An agent that runs 5 s longer gets AgentTimeout. One that does not
        catch it ends with AgentResult.timed_out, its model calls unknown. MemoryError ends it with
        AgentResult.out_of_memory in the same way.
        `command_timeout_s`: seconds for one command in the sandbox.
        `trajectory`: file for the agent's record of the run. It must not contain `endpoint.api_key`.
        `seconds`: receives the wall seconds of the agent's phases, for example `model` and `commands`.

        Raises ModelError, SandboxError or AgentError for failures that the agent did not cause.
        Another KeyboardInterrupt means that the session is cancelled: do not catch it.
        """


def sandbox_env(agent: Agent) -> dict[str, str]:
    """Extra variables of an agent's commands: its optional attribute `sandbox_env`, else none."""
    variables: Mapping[str, str] = getattr(agent, "sandbox_env", {})
    return dict(variables)
