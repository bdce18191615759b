"""Interface between a session and the sandbox in which its commands run.

Invariant: a command that fails or exceeds a limit is a result; only a broken sandbox raises.
"""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
MESSAGE_CHARACTERS = 500
KILLED = 128 + signal.SIGKILL  # the return code of a killed command


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of one command.

    `output`: stdout and stderr in the order of writing, until the command's bash ended; undecodable bytes are replaced.
    `returncode`: the exit status; KILLED after a kill.
    `seconds`: wall seconds.
    `limit`: the limit that ended the command (`time`, `output`, `memory`, `processes`, `disk`), else "".
    `startup`: the beginning of `output` that does not come from the command: warnings of its bash about the
    environment, and what the environment's startup file (BASH_ENV) printed.
    """

    output: str
    returncode: int
    seconds: float
    limit: str = ""
    startup: str = ""

    @property
    def own_output(self) -> str:
        """What the command itself printed."""
        return self.output[len(self.startup) :]


@dataclass(frozen=True, slots=True)
class CleanResult:
    """Result of one of the server's own commands. `data`: its standard output. `errors`: its standard error, as text.
    The rest is as in CommandResult."""

    data: bytes
    errors: str
    returncode: int
    seconds: float
    limit: str = ""

    @property
    def output(self) -> str:
        """The standard output as text; undecodable bytes are replaced."""
        return self.data.decode(errors="replace")

    @property
    def message(self) -> str:
        """The end of what it printed, for error messages."""
        return f"{self.output}{self.errors}".strip()[-MESSAGE_CHARACTERS:]


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """Usage by all processes of a sandbox since its start.

    `cpu_s`: CPU seconds. `peak_bytes`: the highest observed sum of resident memory and files in memory; a page shared
    by several processes counts once for each of them.
    """

    cpu_s: float
    peak_bytes: int


class Sandbox(Protocol):
    """Process tree with a file system of its own.

    `shell_pid`: host pid of a process inside; its namespaces are the sandbox's.
    Calls raise SandboxDied when the sandbox is gone, and SandboxLimitExceeded when it was killed over a limit.
    """

    shell_pid: int

    def run(
        self, command: str, *, cwd: str, timeout_s: float, variables: Mapping[str, str] = NO_VARIABLES
    ) -> CommandResult:
        """Run `command` in a new bash, in the image's environment and with `variables`.

        For commands of the agent, and for what a row or a setting names. bash sources the environment's startup file
        (BASH_ENV). Only files and processes of earlier commands remain; what these processes print is not in `output`.
        """

    def run_clean(self, command: str, *, cwd: str, timeout_s: float) -> CleanResult:
        """Run a command of the server's own in a new bash.

        PATH and HOME are the image's. There are no startup files, no functions of the environment, the locale is C,
        git's variables and others that change what programs print are not set. Nothing else prints to its streams.
        """

    def write_file(self, path: str, content: str) -> None:
        """Create or replace the file at an absolute path inside. Raises SandboxFileError where that is impossible, for
        example for lack of space."""

    def kill_background(self) -> None:
        """Kill the processes that earlier commands left running."""

    def resource_usage(self) -> ResourceUsage:
        """Usage so far. Does not raise when the sandbox is gone."""

    def close(self) -> None:
        """Kill every process of the sandbox and reap it; repeatable."""
