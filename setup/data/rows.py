"""Selects rows from parquet and JSONL files and writes them to one parquet file.

Invariant: memory holds one row group of the input and one of the output, however large the files are. The output
replaces an older file only when it is complete.
"""

import difflib
import errno
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from client.atomic_write import replacing
from client.errors import DatasetError, StorageError

READ_ROWS = 16
GROUP_ROWS, GROUP_BYTES = 1000, 32 << 20  # the first limit reached ends a row group of the output
ID_COLUMNS = ("instance_id", "docker_image", "commit_hash")  # a row's id is the first that the dataset has
IMAGE_COLUMNS = ("image_name", "docker_image", "image")
ORIGIN = "swe-rl.origin"


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows with one of the values of `where` in each of its columns, something in each column of `filled`, and an id in
    `ids`; of those, without the first `skip`, at most `limit`; with these `columns`. An empty field selects
    everything."""

    columns: tuple[str, ...] = ()
    where: dict[str, tuple[str, ...]] = field(default_factory=dict)
    filled: tuple[str, ...] = ()
    ids: frozenset[str] = frozenset()
    skip: int = 0
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class WriteResult:
    """`columns`: name -> type. `images`: number of distinct images in the rows, None without an image column."""

    rows: int
    columns: dict[str, str]
    images: int | None


def write(
    paths: Iterable[Path],
    selection: Selection,
    output: Path,
    origin: str,
    on_progress: Callable[[int], None] = lambda rows: None,
) -> WriteResult:
    """Write the selected rows of `paths` to `output`, with `origin` in its metadata. `paths` is consumed lazily,
    only as far as the limit needs; `on_progress` gets the number of rows so far. Raises DatasetError for an unknown
    column or id and for an empty selection, StorageError if the disk refuses; `output` is then unchanged."""
    try:
        with replacing(output) as temporary:
            return _write(paths, selection, temporary, origin, on_progress)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(
                f"the disk of {output.parent} is full, {output.name} was not written; free some space, run this again"
            ) from error
        raise StorageError(f"cannot write {output}: {error}; choose a writable folder") from error


def _write(
    paths: Iterable[Path], selection: Selection, output: Path, origin: str, on_progress: Callable[[int], None]
) -> WriteResult:
    missing_ids = set(selection.ids)
    batches = _selected(paths, selection, missing_ids)
    first = next(batches, None)
    if first is None:
        raise DatasetError("no row is selected; loosen --where, --ids or --skip")
    schema, rows, images = first.schema.with_metadata({ORIGIN: origin}), 0, set[str]()
    with output.open("wb") as stream, pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        for group in _groups(_cast(batch, schema) for batch in chain([first], batches)):
            writer.write_table(group)
            rows += group.num_rows
            images |= _image_names(group)
            on_progress(rows)
    if missing_ids and selection.limit is None:
        raise DatasetError(
            f"{len(missing_ids)} of {len(selection.ids)} ids match no row, among them"
            f" {', '.join(sorted(missing_ids)[:3])}; correct the file of ids"
        )
    columns = {name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)}
    return WriteResult(rows, columns, len(images) if _find_first(IMAGE_COLUMNS, schema.names) else None)


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Merge batches into row groups of the output: a selective filter leaves few rows in a batch."""
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        pending.append(batch)
        if sum(part.num_rows for part in pending) >= GROUP_ROWS or sum(part.nbytes for part in pending) >= GROUP_BYTES:
            yield pa.Table.from_batches(pending)
            pending = []
    if pending:
        yield pa.Table.from_batches(pending)


def _selected(paths: Iterable[Path], selection: Selection, missing_ids: set[str]) -> Iterator[pa.RecordBatch]:
    """Yield batches of selected rows, none of them empty. Removes the ids it finds from `missing_ids`."""
    skip, left = selection.skip, selection.limit
    for path in paths:
        for batch in _read(path, selection):
            if selection.ids:
                ids = _as_strings(batch.column(_find_first(ID_COLUMNS, batch.schema.names)))
                missing_ids -= set(ids.to_pylist())
                batch = batch.filter(pc.is_in(ids, value_set=pa.array(sorted(selection.ids), pa.string())))
            for name, values in selection.where.items():
                value_set = pa.array(values, pa.string())
                batch = batch.filter(pc.is_in(_as_strings(batch.column(name)), value_set=value_set))
            for name in selection.filled:
                batch = batch.filter(_is_filled(batch.column(name)))
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
            columns = _columns_to_read(schema.names, selection, path)
            batches = (pa.RecordBatch.from_pylist(rows, schema).select(columns) for rows in _jsonl_rows(path))
        else:
            parquet = pq.ParquetFile(path, memory_map=True)  # without it, every row group read stays in memory
            columns = _columns_to_read(parquet.schema_arrow.names, selection, path)
            batches = parquet.iter_batches(READ_ROWS, columns=columns, use_threads=False)
        yield from batches
    except (pa.ArrowException, ValueError) as error:
        raise DatasetError(
            f"{path.name} cannot be read as {path.suffix.lstrip('.')}: {error}; take another split or report it"
        ) from error


def _columns_to_read(names: list[str], selection: Selection, path: Path) -> list[str]:
    """The columns of the output and of the conditions. Raises DatasetError for an unknown one."""
    conditions = [*selection.where, *selection.filled]
    if selection.ids:
        id_column = _find_first(ID_COLUMNS, names)
        if not id_column:
            raise DatasetError(
                f"--ids needs one of the columns {', '.join(ID_COLUMNS)}, and {path.name} has {', '.join(names)}"
            )
        conditions.append(id_column)
    for name in (*selection.columns, *conditions):
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            suggestion = f" (did you mean {near[0]}?)" if near else ""
            raise DatasetError(f"{path.name} has no column {name!r}{suggestion}; it has {', '.join(names)}")
    return list(dict.fromkeys([*selection.columns, *conditions])) if selection.columns else names


def _jsonl_rows(path: Path) -> Iterator[list[dict[str, Any]]]:
    with path.open(encoding="utf-8") as lines:
        rows = (json.loads(line) for line in lines if line.strip())
        while batch := list(islice(rows, READ_ROWS)):
            yield batch


def _jsonl_schema(path: Path) -> pa.Schema:
    """The schema of the whole file: a column may start with nulls, or be absent from the first rows."""
    schema = pa.schema([])
    for rows in _jsonl_rows(path):
        names = dict.fromkeys(name for row in rows for name in row)
        batch = pa.RecordBatch.from_pydict({name: [row.get(name) for row in rows] for name in names})
        schema = pa.unify_schemas([schema, batch.schema], promote_options="permissive")
    return schema


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert to the schema of the split's first file, in case the files differ."""
    if batch.schema.equals(schema):
        return batch.replace_schema_metadata(schema.metadata)
    try:
        return batch.select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise DatasetError(
            f"the files of the split differ in their columns ({error}); choose common columns with --columns"
        ) from error


def _image_names(rows: pa.Table) -> set[str]:
    name = _find_first(IMAGE_COLUMNS, rows.schema.names)
    return set(_as_strings(rows.column(name)).to_pylist()) - {None} if name else set()


def _as_strings(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    try:
        return column.cast(pa.string())
    except pa.ArrowException as error:
        raise DatasetError(
            f"rows cannot be selected by a column of type {column.type}; use a column of strings or numbers"
        ) from error


def _is_filled(column: pa.Array) -> pa.Array:
    """False for null, NaN, an empty text and an empty list."""
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        filled = pc.greater(pc.list_value_length(column), 0)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        filled = pc.greater(pc.binary_length(column), 0)
    else:
        filled = pc.invert(pc.is_null(column, nan_is_null=True))
    return pc.fill_null(filled, False)


def _find_first(candidates: Iterable[str], names: Iterable[str]) -> str | None:
    return next((name for name in candidates if name in names), None)


def read_origin(path: Path) -> str | None:
    """Return the `origin` that `write` stored in the file, None for a file from elsewhere."""
    try:
        origin = (pq.read_schema(path).metadata or {}).get(ORIGIN.encode())
    except (pa.ArrowException, OSError):
        return None
    return origin.decode() if origin else None


def count_common_rows(*paths: Path) -> int:
    """Count the rows that all files have in common, by the first id column of all of them."""
    schemas = [set(pq.read_schema(path).names) for path in paths]
    name = _find_first(ID_COLUMNS, set.intersection(*schemas)) if len(paths) > 1 else None
    if name is None:
        return 0
    return len(set.intersection(*(set(pq.read_table(path, columns=[name])[name].to_pylist()) for path in paths)))
