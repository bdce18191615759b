"""Interface between a session and the sandbox in which its commands run.

Invariant: a command that fails or exceeds a limit is a result; only a broken sandbox raises.
"""

import signal
from dataclasses import dataclass
from typing import Protocol

KILLED = 128 + signal.SIGKILL  # the return code of a killed command


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of one command.

    `output`: stdout and stderr in the order of writing; undecodable bytes are replaced.
    `returncode`: the exit status; KILLED after a kill.
    `seconds`: wall seconds.
    `limit`: the limit that ended the command (`time`, `output`, `memory`, `processes`, `disk`), else "".
    """

    output: str
    returncode: int
    seconds: float
    limit: str = ""


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

    def run(self, command: str, *, cwd: str, timeout_s: float) -> CommandResult:
        """Run `command` in a new bash. Only files and processes of earlier commands remain."""

    def write_file(self, path: str, content: str) -> None:
        """Create or replace the file at an absolute path inside."""

    def kill_background(self) -> None:
        """Kill the processes that earlier commands left running."""

    def resource_usage(self) -> ResourceUsage:
        """Usage so far. Does not raise when the sandbox is gone."""

    def close(self) -> None:
        """Kill every process of the sandbox and reap it; repeatable."""
