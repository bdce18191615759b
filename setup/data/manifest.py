"""manifest.json: what the rows of a folder are, where they came from, and whether they still are that.

    {"format": 1, "modes": {"train": {"request": {...}, "revision", "split", "sources": [{"path", "size", "checksum"}],
     "file", "sha256", "size", "rows", "columns": {name: type}, "images"}, "eval": {...}}}

Invariant: it is written after the rows it describes, whole or not at all; rows that it does not describe are told by `problems`.
"""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from client.errors import DatasetError
from setup.data.hub import sha256_of

NAME = "manifest.json"
FORMAT = 1


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Entries by mode, none if there is no manifest. Raises DatasetError if it cannot be read."""
    path = folder / NAME
    try:
        manifest = json.loads(path.read_text())
        if manifest["format"] != FORMAT:
            raise DatasetError(
                f"{path} has format {manifest['format']}, this program knows {FORMAT}; fetch into another folder"
            )
        return manifest["modes"]
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as broken:
        raise DatasetError(
            f"{path} is not a manifest ({broken}); remove it and fetch again, what the hub's cache holds is not fetched anew"
        ) from broken


def write(folder: Path, modes: dict[str, dict[str, Any]]) -> None:
    half_written = folder / f".{NAME}.partial"
    with half_written.open("w") as stream:
        json.dump({"format": FORMAT, "modes": modes}, stream, indent=2)
        stream.flush()
        os.fsync(stream.fileno())
    half_written.replace(folder / NAME)


def problems(folder: Path, entry: dict[str, Any]) -> list[str]:
    """What is wrong with the rows of one entry; nothing if they are those that were written."""
    path = folder / entry["file"]
    if not path.is_file():
        return [f"{path} is missing"]
    if path.stat().st_size != entry["size"] or sha256_of(path) != entry["sha256"]:
        return [f"{path} is not the file that was written: size or sha256 differ from {NAME}"]
    try:
        found = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as unreadable:
        return [f"{path} cannot be read as parquet: {unreadable}"]
    columns = found.schema.to_arrow_schema().names
    wrong = (
        [f"{path} has {found.num_rows} rows, {NAME} tells {entry['rows']}"] if found.num_rows != entry["rows"] else []
    )
    return wrong + (
        [f"{path} has the columns {columns}, {NAME} tells {list(entry['columns'])}"]
        if columns != list(entry["columns"])
        else []
    )
