"""manifest.json: the origin and the checksums of a folder's rows, and their verification.

    {"format": 1, "modes": {"train": {"request": {...}, "revision", "split", "sources": [{"path", "size", "checksum"}],
     "file", "sha256", "size", "rows", "columns": {name: type}, "images"}, "eval": {...}}}

Invariant: the manifest is written after the rows it describes, whole or not at all. `problems` reports every
difference.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from client.atomic_write import write_text
from client.errors import DatasetError
from setup.data.hub import compute_sha256

NAME = "manifest.json"
FORMAT = 1


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the entries by mode, none if there is no manifest. Raises DatasetError if it is unreadable."""
    path = folder / NAME
    try:
        manifest = json.loads(path.read_text())
        if manifest["format"] != FORMAT:
            raise DatasetError(
                f"{path} has format {manifest['format']}, this program reads {FORMAT}; fetch into another folder"
            )
        return manifest["modes"]
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"{path} is not a manifest ({error}); remove it and fetch again; files in the hub's cache are kept"
        ) from error


def write(folder: Path, modes: dict[str, dict[str, Any]]) -> None:
    """Replace the folder's manifest. Raises OSError."""
    write_text(folder / NAME, json.dumps({"format": FORMAT, "modes": modes}, indent=2))


def problems(folder: Path, entry: dict[str, Any]) -> list[str]:
    """Compare the rows of one entry with the manifest; returns one message per difference."""
    path = folder / entry["file"]
    if not path.is_file():
        return [f"{path} is missing"]
    if path.stat().st_size != entry["size"] or compute_sha256(path) != entry["sha256"]:
        return [f"{path} is not the file that was written: its size or sha256 differs from {NAME}"]
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        return [f"{path} cannot be read as parquet: {error}"]
    columns, expected = metadata.schema.to_arrow_schema().names, list(entry["columns"])
    differences = []
    if metadata.num_rows != entry["rows"]:
        differences.append(f"{path} has {metadata.num_rows} rows, {NAME} has {entry['rows']}")
    if columns != expected:
        differences.append(f"{path} has the columns {columns}, {NAME} has {expected}")
    return differences
