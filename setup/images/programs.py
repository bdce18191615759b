"""Runs apptainer and skopeo as child programs that never outlive this process unnoticed.

Invariant: a program ends with the thread that waits for it, also after kill -9. Its children hold a lock on `alive`
until they have ended.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spython.utils import run_command

MESSAGE_CHARACTERS = 1500


@dataclass(frozen=True)
class ProgramResult:
    """`output`: standard output first. `messages`: the end of all output."""

    returncode: int
    output: str
    messages: str


@dataclass(frozen=True)
class ProgramRunner:
    """`alive`: a file on which every program holds a shared lock. `environment`: additional variables."""

    alive: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, command: Sequence[str | Path], folder: Path, **environment: str) -> ProgramResult:
        """Run the command in `folder` and wait for its end."""
        lock = ["flock", "--shared", "--no-fork", str(self.alive)]
        guard = ["setpriv", "--pdeathsig", "KILL", *lock, "env", "-C", str(folder)]
        result = run_command(
            [*guard, *map(str, command)], quiet=True, environ={**os.environ, **self.environment, **environment}
        )
        messages = result["message"] or [""]
        return ProgramResult(result["return_code"], messages[0], "\n".join(messages).strip()[-MESSAGE_CHARACTERS:])
