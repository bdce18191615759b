"""Rows of a parquet or JSONL file, read on demand.

Invariant: memory holds no more of a file than the requested columns of one batch of rows, however large its texts are.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from agent_server.tasks.characters import whole_characters
from client.errors import ConfigError, DatasetError

BATCH_ROWS = 128
BUFFER_BYTES = 1 << 18
PRESENT = "..."  # in place of a text that was not read


class Rows(Protocol):
    """Reader of one file. `columns`: at least those of the first row. A column that a row lacks is None in it."""

    columns: frozenset[str]

    def scan(self, columns: Sequence[str], texts: Sequence[str]) -> Iterator[dict[str, Any]]:
        """All rows in order, with these columns, and PRESENT or "" (empty) for each column in `texts`.

        A list with any elements may be [PRESENT]. Raises ConfigError.
        """

    def read(self, number: int) -> dict[str, Any]:
        """One row with all its columns. Raises DatasetError where the file has changed since `scan`."""


def open_rows(path: Path) -> Rows:
    """The reader for the file's format. Raises ConfigError for a file that is neither."""
    try:
        return JsonRows(path) if path.suffix == ".jsonl" else ParquetRows(path)
    except (OSError, ValueError) as unreadable:
        raise ConfigError(f"{path} cannot be read as {path.suffix.lstrip('.')}: {unreadable}") from unreadable


class ParquetRows:
    """Parquet file. Row groups are skipped by their sizes."""

    def __init__(self, path: Path):
        self._path = path
        with self._open() as file:
            self.columns = frozenset(file.schema_arrow.names)
            groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        self._starts = [sum(groups[:number]) for number in range(len(groups) + 1)]

    def scan(self, columns: Sequence[str], texts: Sequence[str]) -> Iterator[dict[str, Any]]:
        """See Rows. Of texts and lists only the lengths become Python objects."""
        names = [name for name in dict.fromkeys((*columns, *texts)) if name in self.columns]
        try:
            with self._open() as file:
                for batch in file.iter_batches(BATCH_ROWS, columns=names, use_threads=False):
                    found = {name: _scan_column(batch.column(name), name in texts) for name in names}
                    for values in zip(*found.values(), strict=True):
                        yield dict(zip(names, values, strict=True))
        except (OSError, ValueError) as unreadable:
            raise ConfigError(f"{self._path} cannot be read as parquet: {unreadable}") from unreadable

    def read(self, number: int) -> dict[str, Any]:
        """See Rows."""
        group = max(index for index, start in enumerate(self._starts[:-1]) if start <= number)
        with _changes_as_errors(self._path), self._open() as file:
            left = number - self._starts[group]
            for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], use_threads=False):
                if left < batch.num_rows:
                    return batch.slice(left, 1).to_pylist()[0]
                left -= batch.num_rows
            raise ValueError("it has fewer rows than before")

    def _open(self) -> parquet.ParquetFile:
        # A buffer, or a whole column of a row group is read at once, and some files have one group.
        return parquet.ParquetFile(self._path, buffer_size=BUFFER_BYTES, pre_buffer=False)


def _scan_column(column: pa.Array, is_text: bool) -> list[Any]:
    """The values, but PRESENT for texts and in lists."""
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [[PRESENT] if length else [] for length in pc.list_value_length(column).to_pylist()]
    if is_text and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return [PRESENT if length else "" for length in pc.binary_length(column).to_pylist()]
    values = column.to_pylist()
    return [_presence(value) for value in values] if is_text else values


def _presence(value: Any) -> str:
    """PRESENT or "". pandas writes NaN for a missing text."""
    return PRESENT if value and value == value else ""


class JsonRows:
    """JSONL file. A scan records the rows' offsets."""

    def __init__(self, path: Path):
        self._path = path
        self._offsets: list[int] = []
        with path.open("rb") as file:
            line = next((line for line in file if line.strip()), None)
        self.columns = frozenset(_parse(line, f"{path}'s first row")) if line else frozenset()

    def scan(self, columns: Sequence[str], texts: Sequence[str]) -> Iterator[dict[str, Any]]:
        """See Rows."""
        self._offsets, offset = [], 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    self._offsets.append(offset)
                    row = _parse(line, f"{self._path} line {number}")
                    yield {name: row.get(name) for name in columns} | {name: _presence(row.get(name)) for name in texts}
                offset += len(line)

    def read(self, number: int) -> dict[str, Any]:
        """See Rows; after `scan`, or of row 0."""
        with _changes_as_errors(self._path), self._path.open("rb") as file:
            if self._offsets:
                file.seek(self._offsets[number])
            return _parse(next((line for line in file if line.strip()), b""), f"{self._path} row {number}")


@contextmanager
def _changes_as_errors(path: Path) -> Iterator[None]:
    """Turn the errors of reading a file that was readable before into DatasetError."""
    try:
        yield
    except (OSError, ValueError, ConfigError) as unreadable:
        raise DatasetError(
            f"the rows in {path} must stay as they were when the server started: {unreadable}; put the file back, or"
            " restart the server with the new one"
        ) from unreadable


def _parse(line: bytes, where: str) -> dict[str, Any]:
    """Raises ConfigError. pandas writes NaN, which is not JSON; Python's slower parser accepts it, and half a surrogate
    pair."""
    try:
        row = orjson.loads(line)
    except ValueError:
        try:
            row = json.loads(whole_characters(json.dumps(json.loads(line), ensure_ascii=False)))
        except ValueError as invalid:
            raise ConfigError(f"{where} is not JSON: {invalid}") from invalid
    if not isinstance(row, dict):
        raise ConfigError(f"{where} is not a JSON object")
    return row
