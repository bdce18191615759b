"""Rows that no session can use: which, why, and the file that lists them.

Invariant: a row that is left out is counted and named with its reason.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from client.atomic_write import write_text
from client.errors import StorageError

SHOWN = 10


@dataclass(frozen=True, slots=True)
class UnusableRow:
    """`row`: its id, or its place in the file (from 0) where it has none."""

    file: str
    row: str | int
    reason: str

    def __str__(self) -> str:
        return f"row {self.row!r}: {self.reason}"


def show(rows: Sequence[UnusableRow]) -> str:
    """The first reasons, a line each."""
    more = f"\n  and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    return "\n  ".join(map(str, rows[:SHOWN])) + more


def write(rows: Sequence[UnusableRow], path: Path) -> None:
    """Write a JSON line per row; without rows, remove what an earlier start wrote. Raises StorageError."""
    try:
        if rows:
            write_text(path, "".join(json.dumps(asdict(row)) + "\n" for row in rows))
        else:
            path.unlink(missing_ok=True)
    except OSError as refused:
        raise StorageError(f"{path} cannot be written ({refused}); choose a writable folder with space") from refused
