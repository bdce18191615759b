"""Agent that runs as a program inside the sandbox. Any program that uses OpenAI's chat API works.

The program starts in the repository. It finds the problem in the file PROBLEM_STATEMENT_FILE and the model at
OPENAI_BASE_URL. The repository's diff is its submission. The image or the command itself must provide the program.
Invariant: the model's key stays in the worker; a failure of the model's API is raised, never returned as a result.
"""

import json
import logging
import shlex
from pathlib import Path

from agent_server.agents.base import REFUSED, TIME_EXCEEDED, AgentResult, AgentTimeout, ModelEndpoint
from agent_server.agents.relay import SandboxRelay
from agent_server.agents.upstream import Upstream
from agent_server.grading.datasets.base import REPOSITORY
from agent_server.sandboxes.base import CommandResult, Sandbox
from client.errors import SandboxLimitExceeded

log = logging.getLogger(__name__)
PROBLEM_FILE = "/tmp/problem_statement.md"


class CommandAgent:
    """Runs one shell command in the repository, limited by the agent's timeout and the sandbox's limits."""

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
        """See Agent.run. `command_timeout_s` is not used, since the whole run is one command.

        `exit_status` is one of Submitted (the program exited with 0), CommandFailed: CODE, TimeExceeded,
        SandboxLimitExceeded: LIMIT, ContextWindowExceeded, ConversationRefused.
        """
        upstream = Upstream(endpoint)
        sandbox.write_file(PROBLEM_FILE, problem_statement)
        try:
            with SandboxRelay(sandbox.shell_pid, upstream) as relay:
                script = f"{_exports(relay.port)}\n{self._command}"
                result = sandbox.run(script, cwd=REPOSITORY, timeout_s=agent_timeout_s)
        except SandboxLimitExceeded as exceeded:
            return AgentResult.over_limit(exceeded, upstream.n_calls)
        except AgentTimeout:
            return AgentResult.timed_out(upstream.n_calls)
        finally:
            seconds["model"] = upstream.seconds
        seconds["commands"] = max(0.0, result.seconds - upstream.seconds)
        self._save(trajectory, problem_statement, result, upstream.n_calls)
        return _to_agent_result(result, upstream)

    def _save(self, trajectory: Path, problem_statement: str, result: CommandResult, n_calls: int) -> None:
        """Write the trajectory in mini-swe-agent's format: the problem, then what the program printed. A disk error is
        logged, since it must not cost the session its result."""
        record = {
            "info": {
                "command": self._command,
                "returncode": result.returncode,
                "limit": result.limit,
                "model_stats": {"api_calls": n_calls},
            },
            "messages": [
                {"role": "user", "content": problem_statement},
                {"role": "tool", "content": result.output},
            ],
        }
        try:
            trajectory.write_text(json.dumps(record, indent=2))
        except OSError as error:
            log.error("the trajectory %s was not written: %s", trajectory, error)


def _exports(port: int) -> str:
    """Shell line that sets the program's variables. Clients insist on some API key, so there is a placeholder."""
    variables = {
        "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1",
        "OPENAI_API_KEY": "unused-value",
        "PROBLEM_STATEMENT_FILE": PROBLEM_FILE,
    }
    return "export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())


def _to_agent_result(result: CommandResult, upstream: Upstream) -> AgentResult:
    """Raises the failure of the last model call, except a refusal that the agent's conversation caused."""
    refused = REFUSED.get(type(upstream.failure)) if upstream.failure else None
    if upstream.failure and not refused:
        raise upstream.failure
    if result.returncode == 0:
        status = "Submitted"
    elif result.limit == "time":
        status = TIME_EXCEEDED
    elif result.limit:
        return AgentResult.over_limit(SandboxLimitExceeded(result.limit), upstream.n_calls)
    else:
        status = refused or f"CommandFailed: {result.returncode}"
    return AgentResult(status, status == "Submitted", "", upstream.n_calls)
