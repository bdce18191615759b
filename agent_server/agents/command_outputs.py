"""Outputs of an agent's commands: a cut of each in memory, and all of it in a file beside the trajectory.

Invariant: an output of any length costs the worker KEPT_CHARACTERS once the agent has seen it; the file has a limit.
"""

import logging
from pathlib import Path

from agent_server.private_files import open_private

log = logging.getLogger(__name__)
KEPT_CHARACTERS = 10_000
FILE_LIMIT_BYTES = 16 * 2**20  # of one session


class CommandOutputs:
    """Writer of one session's file; there is none while all outputs are short."""

    def __init__(self, trajectory: Path):
        """`trajectory`: SESSION.json or the like; the file is SESSION.outputs.txt in the same folder."""
        self.path = trajectory.with_name(f"{trajectory.name.partition('.')[0]}.outputs.txt")
        self._left = FILE_LIMIT_BYTES

    def keep(self, command: str, output: str) -> str:
        """The output as it stays in memory. A longer one is appended whole to the file, where it fits."""
        if len(output) <= KEPT_CHARACTERS:
            return output
        self._append(f"$ {command}\n{output}\n")
        half = KEPT_CHARACTERS // 2
        left_out = len(output) - 2 * half
        return f"{output[:half]}\n[{left_out} characters left out; see {self.path.name}]\n{output[-half:]}"

    def _append(self, text: str) -> None:
        """A disk error is logged, since it must not cost the session its result."""
        if self._left <= 0:
            return
        data = text.encode(errors="replace")
        if len(data) > self._left:
            data = data[: self._left] + b"\n[the file is full; what follows is left out]\n"
        try:
            with open(self.path, "ab", opener=open_private) as file:
                file.write(data)
        except OSError as error:
            log.error("%s was not written: %s", self.path, error)
        self._left -= len(data)
