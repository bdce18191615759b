"""Rows of a split that lies in several parquet files.

Invariant: a row's number counts through all parts, in the order of their names.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agent_server.tasks.files import expand
from agent_server.tasks.rows import Rows, open_rows


def open_parts(path: Path) -> Rows:
    """The reader of what a name of agent_server/tasks/files.py stands for. Raises ConfigError."""
    parts = [open_rows(part) for part in expand(path)]
    return parts[0] if len(parts) == 1 else PartedRows(parts)


class PartedRows:
    """Several files in a row. `columns`: those that every part has."""

    def __init__(self, parts: Sequence[Rows]):
        self._parts = parts
        self._counts = [0] * len(parts)
        self.columns = frozenset.intersection(*(part.columns for part in parts))

    def scan(self, columns: Sequence[str], texts: Sequence[str]) -> Iterator[dict[str, Any]]:
        """See Rows."""
        for number, part in enumerate(self._parts):
            self._counts[number] = 0
            for row in part.scan(columns, texts):
                self._counts[number] += 1
                yield row

    def read(self, number: int) -> dict[str, Any]:
        """See Rows; after `scan`, or of row 0."""
        ends = list(itertools.accumulate(self._counts))
        index = next((index for index, end in enumerate(ends) if number < end), 0)
        return self._parts[index].read(number - (ends[index] - self._counts[index]))
