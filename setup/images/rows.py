"""Image names of the task rows.

Invariant: every row has an image. A row without one is an error, never skipped. The names are those under which the
agent server looks for the images.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from agent_server.grading.datasets.base import IMAGE_COLUMNS, Dataset, named_image
from agent_server.grading.datasets.registry import AUTO, dataset_for_row, load_dataset
from agent_server.tasks.catalog import Catalog
from agent_server.tasks.files import expand, look_for_file
from agent_server.tasks.order import MODES
from agent_server.tasks.rows import open_rows
from client.errors import ConfigError

DERIVATION_COLUMNS = ("instance_id", "repo", "version", "log_parser", "dockerhub_tag")  # to derive a name from
Row = dict[str, Any]


def image_names(data_path: Path, dataset: str) -> list[str]:
    """Return the image names of the rows; `dataset` as in the agent server's AGENT_SERVER_DATASET. Raises
    ConfigError."""
    if dataset != AUTO:
        return sorted(Catalog(data_path, dataset).image_names())
    names: dict[str, None] = {}
    for path in _files(data_path):
        rows = _read(path)
        kind = _kind(path)
        names |= dict.fromkeys(
            distinct_images(rows, named=kind.image) if kind else distinct_images(rows, published_name)
        )
    return list(names)


def distinct_images(
    rows: Iterable[Row],
    derive: Callable[[Row], str | None] = lambda row: None,
    named: Callable[[Row], str] = named_image,
) -> list[str]:
    """Return each image once, in the rows' order. `named` reads a row's image, `derive` names that of a row without
    one. Raises ConfigError."""
    names: dict[str, None] = {}
    for number, row in enumerate(rows):
        if not (name := named(row) or derive(row)):
            row_id = row.get("instance_id") or f"number {number}"
            raise ConfigError(
                f"row {row_id} names no image: {', '.join(IMAGE_COLUMNS)} are all empty; fill one or drop the row"
            )
        names[name] = None
    return list(names)


def published_name(row: Row) -> str | None:
    """Derive the name under which SWE-bench and SWE-Gym publish the image of a row without one."""
    return load_dataset("swebench").image(row) if row.get("instance_id") and row.get("repo") else None


def read_rows(data_path: Path) -> list[Row]:
    """Read the rows of a file, or of a folder's `train.*` and `eval.*`, with the columns for an image's name.
    Raises ConfigError."""
    return [row for path in _files(data_path) for row in _read(path)]


def _files(data_path: Path) -> Iterator[Path]:
    found = dict.fromkeys(path for mode in MODES if (path := look_for_file(data_path, mode)))
    if not found:
        raise ConfigError(
            f"R2E_DATA_PATH={data_path} is no file and has no train or eval rows (parquet or JSONL);"
            " use the agent server's value"
        )
    for path in found:
        yield from expand(path)


def _kind(path: Path) -> Dataset | None:
    """The class that grades the file's rows; None for rows of no known kind, which may still name images."""
    rows = open_rows(path)
    try:
        return dataset_for_row(rows.read(0), str(path)) if rows.columns else None
    except ConfigError:
        return None


def _read(path: Path) -> list[Row]:
    try:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        names = set(parquet.read_schema(path).names)
        columns = [name for name in (*DERIVATION_COLUMNS, *IMAGE_COLUMNS) if name in names]
        return parquet.read_table(path, columns=columns).to_pylist()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read as {path.suffix.lstrip('.')}: {error}; correct or replace the file"
        ) from error
