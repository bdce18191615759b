"""Rows out of parquet and jsonl files, selected, into one parquet file.

Invariant: memory holds a row group of the input and one of the output, however large the files;
the parquet file stands under its name only when it is whole.
"""

import difflib
import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from client.errors import DatasetError, StorageError

READ_ROWS = 16
GROUP_ROWS, GROUP_BYTES = 1000, 32 << 20  # a row group of the output ends at the first of the two
ID_COLUMNS = ("instance_id", "docker_image", "commit_hash")  # the first that a dataset has tells its rows apart
IMAGE_COLUMNS = ("image_name", "docker_image", "image")
ORIGIN = "swe-rl.origin"


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows for which every column of `where` has one of its values and whose id is one of `ids`; of those, without the first `skip`,
    at most `limit`; with `columns` of them. Empty means all."""

    columns: tuple[str, ...] = ()
    where: dict[str, tuple[str, ...]] = field(default_factory=dict)
    ids: frozenset[str] = frozenset()
    skip: int = 0
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """`images`: how many different images the rows name, None if no column names any."""

    rows: int
    columns: dict[str, str]
    images: int | None


def write(
    paths: Iterable[Path],
    selection: Selection,
    output: Path,
    origin: str,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> Written:
    """Takes from `paths` (asked for one by one, and no further than the limit needs) into `output`, which keeps `origin` in its metadata.
    Calls `on_rows` with the number of rows so far. Raises DatasetError for a column or an id that is not there and for no rows at all,
    StorageError; then `output` stays as it was."""
    half_written = output.with_name(f".{output.name}.partial")
    try:
        with half_written.open("wb") as stream:
            written = _write(paths, selection, stream, origin, on_rows)
            stream.flush()
            os.fsync(stream.fileno())
        half_written.replace(output)
    except OSError as refused:
        if refused.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(
                f"the disk of {output.parent} is full, {output.name} was not written; free some space and run this again"
            ) from refused
        raise StorageError(f"cannot write {output}: {refused}") from refused
    finally:
        half_written.unlink(missing_ok=True)
    return written


def _write(
    paths: Iterable[Path], selection: Selection, stream: BinaryIO, origin: str, on_rows: Callable[[int], None]
) -> Written:
    unseen = set(selection.ids)
    batches = selected(paths, selection, unseen)
    first = next(batches, None)
    if first is None:
        raise DatasetError("no row is selected; loosen --where, --ids or --skip")
    schema, rows, images = first.schema.with_metadata({ORIGIN: origin}), 0, set()
    with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        for group in _groups(_as(batch, schema) for batch in chain([first], batches)):
            writer.write_table(group)
            rows += group.num_rows
            images |= _images(group)
            on_rows(rows)
    if unseen and selection.limit is None:
        raise DatasetError(
            f"{len(unseen)} of {len(selection.ids)} ids are those of no row, {', '.join(sorted(unseen)[:3])} among them; correct the file of ids"
        )
    columns = {name: str(kind) for name, kind in zip(schema.names, schema.types)}
    return Written(rows, columns, len(images) if _first(IMAGE_COLUMNS, schema.names) else None)


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Row groups of the output. Few selected rows in a batch must not make as many groups."""
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        pending.append(batch)
        if sum(part.num_rows for part in pending) >= GROUP_ROWS or sum(part.nbytes for part in pending) >= GROUP_BYTES:
            yield pa.Table.from_batches(pending)
            pending = []
    if pending:
        yield pa.Table.from_batches(pending)


def selected(paths: Iterable[Path], selection: Selection, unseen: set[str]) -> Iterator[pa.RecordBatch]:
    """Batches of selected rows, none of them empty. Takes the ids that it finds out of `unseen`."""
    skip, left = selection.skip, selection.limit
    for path in paths:
        for batch in _read(path, selection):
            if selection.ids:
                ids = batch.column(_first(ID_COLUMNS, batch.schema.names))
                unseen -= set(_texts(ids).to_pylist())
                batch = batch.filter(pc.is_in(_texts(ids), value_set=pa.array(sorted(selection.ids), pa.string())))
            for name, values in selection.where.items():
                batch = batch.filter(pc.is_in(_texts(batch.column(name)), value_set=pa.array(values, pa.string())))
            dropped = min(skip, batch.num_rows)
            skip, batch = skip - dropped, batch.slice(dropped, left)
            if left is not None:
                left -= batch.num_rows
            if batch.num_rows:
                yield batch.select(list(selection.columns)) if selection.columns else batch
            if left == 0:
                return


def _read(path: Path, selection: Selection) -> Iterator[pa.RecordBatch]:
    try:
        if path.suffix == ".jsonl":
            schema = _jsonl_schema(path)
            wanted = _wanted(schema.names, selection, path)
            batches = (pa.RecordBatch.from_pylist(rows, schema).select(wanted) for rows in _jsonl_rows(path))
        else:
            parquet = pq.ParquetFile(path, memory_map=True)  # else it keeps every row group that it has read
            names = parquet.schema_arrow.names
            batches = parquet.iter_batches(READ_ROWS, columns=_wanted(names, selection, path), use_threads=False)
        yield from batches
    except (pa.ArrowException, ValueError) as unreadable:
        raise DatasetError(
            f"{path.name} cannot be read as {path.suffix.lstrip('.')}: {unreadable}; its publisher must mend it, or take another split"
        ) from unreadable


def _wanted(names: list[str], selection: Selection, path: Path) -> list[str]:
    """The columns to read: those of the output and those that decide."""
    if selection.ids and not _first(ID_COLUMNS, names):
        raise DatasetError(
            f"--ids needs one of the columns {', '.join(ID_COLUMNS)}, and {path.name} has {', '.join(names)}"
        )
    deciding = [*selection.where, *([_first(ID_COLUMNS, names)] if selection.ids else [])]
    for name in (*selection.columns, *deciding):
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise DatasetError(
                f"{path.name} has no column {name!r}{f' (did you mean {near[0]}?)' if near else ''}; it has {', '.join(names)}"
            )
    return list(dict.fromkeys([*selection.columns, *deciding])) if selection.columns else names


def _jsonl_rows(path: Path) -> Iterator[list[dict]]:
    with path.open(encoding="utf-8") as lines:
        rows = (json.loads(line) for line in lines if line.strip())
        while some := list(islice(rows, READ_ROWS)):
            yield some


def _jsonl_schema(path: Path) -> pa.Schema:
    """Of the whole file, so that a column that begins with nulls, or comes late, has its type and its place."""
    schema = pa.schema([])
    for rows in _jsonl_rows(path):
        names = dict.fromkeys(name for row in rows for name in row)
        found = pa.RecordBatch.from_pydict({name: [row.get(name) for row in rows] for name in names}).schema
        schema = pa.unify_schemas([schema, found], promote_options="permissive")
    return schema


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Files of one split should have one schema; where they differ the first decides."""
    if batch.schema.equals(schema):
        return batch.replace_schema_metadata(schema.metadata)
    try:
        return batch.select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError, ValueError) as different:
        raise DatasetError(
            f"the files of the split differ in their columns ({different}); choose columns that all have with --columns"
        ) from different


def _images(rows: pa.Table) -> set[str]:
    name = _first(IMAGE_COLUMNS, rows.schema.names)
    return set(_texts(rows.column(name)).to_pylist()) - {None} if name else set()


def _texts(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    try:
        return column.cast(pa.string())
    except pa.ArrowException as nested:
        raise DatasetError(
            f"rows cannot be chosen by a column of type {column.type}; take one of texts or numbers"
        ) from nested


def _first(candidates: Iterable[str], names: Iterable[str]) -> str | None:
    return next((name for name in candidates if name in names), None)


def origin(path: Path) -> str | None:
    """What `write` was told; None if it did not write that file."""
    try:
        told = (pq.read_schema(path).metadata or {}).get(ORIGIN.encode())
    except (pa.ArrowException, OSError):
        return None
    return told.decode() if told else None


def ids_in_both(*paths: Path) -> int:
    """How many rows the files have in common, by the first id column that both have."""
    schemas = [set(pq.read_schema(path).names) for path in paths]
    name = _first(ID_COLUMNS, set.intersection(*schemas)) if len(paths) > 1 else None
    if name is None:
        return 0
    return len(set.intersection(*(set(pq.read_table(path, columns=[name])[name].to_pylist()) for path in paths)))
