"""Running apptainer and skopeo so that nothing of them outlives us unnoticed.

Invariant: a program ends when the thread that waits for it ends, kill -9 included; what it had started keeps `alive` locked until it is gone.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spython.utils import run_command


@dataclass(frozen=True)
class Ran:
    returncode: int
    output: str  # standard output first
    said: str  # the end of everything


@dataclass(frozen=True)
class Programs:
    """`alive`: a file that every program holds a shared lock of. `environment` is added to ours."""

    alive: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, command: Sequence[str | Path], folder: Path, **environment: str) -> Ran:
        """Run it in `folder`, to its end."""
        guard = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "flock",
            "--shared",
            "--no-fork",
            str(self.alive),
            "env",
            "-C",
            str(folder),
        ]
        result = run_command(
            [*guard, *map(str, command)], quiet=True, environ={**os.environ, **self.environment, **environment}
        )
        messages = result["message"] or [""]
        return Ran(result["return_code"], messages[0], "\n".join(messages).strip()[-1500:])
