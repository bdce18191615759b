"""A program inside the sandbox as the session's agent: started there with the problem in a file and the model's API at
OPENAI_BASE_URL; what it leaves in the repository is its submission.

Any agent that speaks OpenAI's chat API works, provided that the image holds it or the command brings it.
Invariant: the model's key stays in the worker; an ending that the model's side caused is raised, never returned.
"""

import json
import logging
import shlex
from pathlib import Path

from agent_server.agents.base import AgentResult, ModelEndpoint
from agent_server.agents.relay import Relay
from agent_server.agents.upstream import Upstream
from agent_server.grading.datasets.base import REPOSITORY
from agent_server.sandboxes.base import CommandResult, Sandbox
from client.errors import ContextLengthExceeded, SandboxLimitExceeded

log = logging.getLogger(__name__)
PROBLEM_FILE = "/tmp/problem_statement.md"


class CommandAgent:
    """Runs `command` by bash in the repository. Its own limits of time and output are the agent's and the sandbox's."""

    sandbox_env: dict[str, str] = {}

    def __init__(self, command: str):
        self._command = command

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
        """See Agent.run. The exit status is Submitted where the program ended with 0, else TimeExceeded, CommandFailed: CODE,
        SandboxLimitExceeded: LIMIT, or ContextWindowExceeded. One command is all there is, so `command_timeout_s` is not used."""
        upstream = Upstream(endpoint)
        sandbox.write_file(PROBLEM_FILE, problem_statement)
        with Relay(sandbox.shell_pid, upstream) as relay:
            variables = {
                "OPENAI_BASE_URL": f"http://127.0.0.1:{relay.port}/v1",
                "OPENAI_API_KEY": "unused-value",
                "PROBLEM_STATEMENT_FILE": PROBLEM_FILE,
            }
            exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
            try:
                result = sandbox.run(f"export {exports}\n{self._command}", cwd=REPOSITORY, timeout_s=agent_timeout_s)
            except SandboxLimitExceeded as exceeded:
                return AgentResult.over_limit(exceeded, upstream.n_calls)
            finally:
                seconds["model"] = upstream.seconds
        seconds["commands"] = max(0.0, result.seconds - upstream.seconds)
        self._save(trajectory, result, upstream.n_calls)
        return _outcome(result, upstream)

    def _save(self, trajectory: Path, result: CommandResult, n_calls: int) -> None:
        """A disk that refuses the trajectory must not cost the session its result."""
        record = {
            "command": self._command,
            "returncode": result.returncode,
            "limit": result.limit,
            "n_calls": n_calls,
            "output": result.output,
        }
        try:
            trajectory.write_text(json.dumps(record, indent=2))
        except OSError as refused:
            log.error("the trajectory %s was not written: %s", trajectory, refused)


def _outcome(result: CommandResult, upstream: Upstream) -> AgentResult:
    overflow = isinstance(upstream.failure, ContextLengthExceeded)
    if upstream.failure and not overflow:
        raise upstream.failure
    if result.returncode == 0:
        status = "Submitted"
    elif result.limit == "time":
        status = "TimeExceeded"
    elif result.limit:
        return AgentResult.over_limit(SandboxLimitExceeded(result.limit), upstream.n_calls)
    else:
        status = "ContextWindowExceeded" if overflow else f"CommandFailed: {result.returncode}"
    return AgentResult(status, status == "Submitted", "", upstream.n_calls)
