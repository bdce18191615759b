"""The sandbox as an agent gets it: its commands have the agent's variables and the environment of root's shell.

Images may activate their environment in root's .bashrc (SWE-bench's do: conda's `testbed`), which bash sources for no
command. As in mini-swe-agent's configuration for SWE-bench, BASH_ENV names that file, so that bash does.
Invariant: the variables are those of the agent's commands alone. Grading in the same sandbox does not have them.
"""

from collections.abc import Mapping

from agent_server.sandboxes.base import NO_VARIABLES, CleanResult, CommandResult, ResourceUsage, Sandbox
from client.errors import InvalidRequest

STARTUP_FILE = "/root/.bashrc"
TIMEOUT_S = 30.0


class SandboxWithVariables:
    """A Sandbox for one agent's commands. Everything else is that of the sandbox itself."""

    def __init__(self, sandbox: Sandbox, variables: Mapping[str, str]):
        """`variables`: the agent's. BASH_ENV is added where neither they nor the image have it and STARTUP_FILE is
        there."""
        self._sandbox = sandbox
        self.shell_pid = sandbox.shell_pid
        no_other = sandbox.run(f"[ -z ${{BASH_ENV+x}} ] && [ -f {STARTUP_FILE} ]", cwd="/", timeout_s=TIMEOUT_S)
        startup = {"BASH_ENV": STARTUP_FILE} if no_other.returncode == 0 else {}
        self._variables = startup | dict(variables)

    def run(
        self, command: str, *, cwd: str, timeout_s: float, variables: Mapping[str, str] = NO_VARIABLES
    ) -> CommandResult:
        """See Sandbox.run. A command that no bash can get is a result like any other: the policy wrote it."""
        every = {**self._variables, **variables}
        try:
            return self._sandbox.run(command, cwd=cwd, timeout_s=timeout_s, variables=every)
        except InvalidRequest as refused:
            return CommandResult(f"{refused}\n", 1, 0.0)

    def run_clean(self, command: str, *, cwd: str, timeout_s: float) -> CleanResult:
        """See Sandbox.run_clean."""
        return self._sandbox.run_clean(command, cwd=cwd, timeout_s=timeout_s)

    def write_file(self, path: str, content: str) -> None:
        """See Sandbox.write_file."""
        self._sandbox.write_file(path, content)

    def kill_background(self) -> None:
        """See Sandbox.kill_background."""
        self._sandbox.kill_background()

    def resource_usage(self) -> ResourceUsage:
        """See Sandbox.resource_usage."""
        return self._sandbox.resource_usage()

    def close(self) -> None:
        """See Sandbox.close."""
        self._sandbox.close()
