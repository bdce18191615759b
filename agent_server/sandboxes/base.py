"""The seam between a session and the place where its commands run.

Invariant: a command that fails or runs too long is a result; only a sandbox that is broken raises.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CommandResult:
    """`output`: stdout and stderr as they were written, undecodable bytes replaced. `limit` names what ended the
    command early (`time`, `output`, `memory`, `processes`, `disk`), else "". A killed command has `returncode` 137."""

    output: str
    returncode: int
    seconds: float
    limit: str = ""


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """By all processes of a sandbox since its start. `peak_bytes`: the most that was seen at a time of resident memory and
    files in memory; pages that processes share count once for each."""

    cpu_s: float
    peak_bytes: int


class Sandbox(Protocol):
    """One process tree with a file system of its own. Raises SandboxDied when it is gone, SandboxLimitExceeded when it was
    ended for what ran in it. `shell_pid`: a process inside, by the host's number; its namespaces are the sandbox's."""

    shell_pid: int

    def run(self, command: str, *, cwd: str, timeout_s: float) -> CommandResult:
        """Run `command` in a fresh bash; state of earlier commands survives in files and processes only."""

    def write_file(self, path: str, content: str) -> None:
        """Put text at an absolute path inside, replacing what is there."""

    def kill_background(self) -> None:
        """End what earlier commands left running."""

    def resource_usage(self) -> ResourceUsage:
        """So far; also answered after the sandbox has died."""

    def close(self) -> None:
        """End every process of the sandbox and reap it; repeatable."""
