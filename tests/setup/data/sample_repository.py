"""Sample rows, and the files of a dataset repository that holds them."""

import io
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

DATASET = "R2E-Gym/R2E-Gym-Subset"
CARD = b"""---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
  - split: dev
    path: data/dev-*
---
Rows.
"""


def sample_rows(start: int, stop: int) -> list[dict]:
    return [
        {
            "instance_id": f"row-{n}",
            "image_name": f"images/{n % 4}:1",
            "repo_name": ("pandas", "numpy", "pillow")[n % 3],
            "problem_statement": f"Row {n} is wrong.",
            "patch": "--- a/x\n+++ b/x\n",
            "FAIL_TO_PASS": [f"test_x.py::test_{n}"],
            "PASS_TO_PASS": [],
            "test_cmd": "pytest -rA",
            "number": n,
        }
        for n in range(start, stop)
    ]


def row_ids(start: int, stop: int) -> list[str]:
    return [f"row-{n}" for n in range(start, stop)]


def to_parquet(rows: list[dict], **options) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), stream, **options)
    return stream.getvalue()


def write_parquet(folder: Path, rows: list[dict], **options) -> Path:
    path = folder / "in.parquet"
    path.write_bytes(to_parquet(rows, **options))
    return path


def incompressible_parquet(rows: list[dict], size: int) -> bytes:
    """The rows as parquet of at least `size` bytes, by a column of random bytes."""
    for row in rows:
        row["ballast"] = random.Random(row["number"]).randbytes(size // len(rows))
    return to_parquet(rows)


FILES = {
    "README.md": CARD,
    "data/train-00000-of-00002.parquet": to_parquet(sample_rows(0, 30)),
    "data/train-00001-of-00002.parquet": to_parquet(sample_rows(30, 60)),
    "data/dev-00000-of-00001.parquet": to_parquet(sample_rows(60, 70)),
}
