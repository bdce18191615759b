"""Task rows in, names of images out.

Invariant: every row has an image; one without is named, never passed over.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from agent_server.grading.datasets import registry as plug
from agent_server.grading.datasets.registry import AUTO
from agent_server.tasks.catalog import Catalog
from client.errors import ConfigError

IMAGE_COLUMNS = ("docker_image", "image", "image_name")  # the first that is filled
FOR_NAMES = ("instance_id", "repo", "version")  # what a name can be derived from
SUFFIXES = (".parquet", ".jsonl")
Row = dict[str, Any]


def names_of(data_path: Path, dataset: str) -> list[str]:
    """The images of the rows; `dataset` as the agent server's AGENT_SERVER_DATASET. Raises ConfigError."""
    if dataset != AUTO:
        return sorted(Catalog(data_path, dataset).image_names())
    return images_of(read_rows(data_path), published_name)


def images_of(rows: Iterable[Row], derive: Callable[[Row], str | None] = lambda row: None) -> list[str]:
    """Each image once, in the rows' order. `derive` gives the name for a row that has none. Raises ConfigError for a row without."""
    names: dict[str, None] = {}
    for number, row in enumerate(rows):
        if not (name := next((str(row[column]) for column in IMAGE_COLUMNS if row.get(column)), None) or derive(row)):
            which = row.get("instance_id") or f"number {number}"
            raise ConfigError(
                f"row {which} names no image: none of {', '.join(IMAGE_COLUMNS)} is filled; fill one or drop the row"
            )
        names[name] = None
    return list(names)


def published_name(row: Row) -> str | None:
    """The name that SWE-bench and SWE-Gym publish the image of such a row under, which names none itself."""
    return plug.load("swebench").image(row) if row.get("instance_id") and row.get("repo") else None


def read_rows(data_path: Path) -> list[Row]:
    """Rows of a file, or of a folder's `train.*` and `eval.*`, with the columns that an image's name comes from. Raises ConfigError."""
    candidates = [data_path / f"{mode}{suffix}" for mode in ("train", "eval") for suffix in SUFFIXES]
    files = [data_path] if data_path.is_file() else [path for path in candidates if path.is_file()]
    if not files:
        wanted = " or ".join(SUFFIXES)
        raise ConfigError(
            f"R2E_DATA_PATH={data_path} is no file and holds no train or eval rows ({wanted}); give what the agent server gets"
        )
    return [row for path in files for row in _read(path)]


def _read(path: Path) -> list[Row]:
    try:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        there = set(parquet.read_schema(path).names)
        return parquet.read_table(
            path, columns=[name for name in (*FOR_NAMES, *IMAGE_COLUMNS) if name in there]
        ).to_pylist()
    except (OSError, ValueError) as unreadable:
        raise ConfigError(f"{path} cannot be read as {path.suffix.lstrip('.')}: {unreadable}") from unreadable
