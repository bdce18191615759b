"""setup/data/rows.py: ids, memory and column types of the rows it writes."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from client.errors import DatasetError
from setup.data import rows
from setup.data.rows import Selection
from tests.setup.conftest import ROOT
from tests.setup.data.sample_repository import write_parquet


def test_rows_without_instance_ids_are_selected_by_image(tmp_path: Path):
    path = write_parquet(tmp_path, [{"docker_image": f"owner/pandas:{n}", "repo_name": "pandas"} for n in range(5)])
    written = rows.write(
        [path], Selection(ids=frozenset({"owner/pandas:3", "owner/pandas:1"})), tmp_path / "out.parquet", "here"
    )
    assert (
        pq.read_table(tmp_path / "out.parquet")["docker_image"].to_pylist() == ["owner/pandas:1", "owner/pandas:3"]
        and written.images == 2
    )


PEAK = """
import sys
from pathlib import Path
import pyarrow as pa
from setup.data import rows
rows.GROUP_BYTES = 4 << 20  # small files are then enough
rows.write([Path(sys.argv[1])], rows.Selection(), Path(sys.argv[2]), "here")
print(pa.default_memory_pool().max_memory())
"""


def test_memory_does_not_grow_with_the_file_size(tmp_path: Path):
    def peak(count: int) -> int:
        path = write_parquet(
            tmp_path,
            [{"instance_id": f"row-{n}", "text": random.Random(n).randbytes(50_000).hex()} for n in range(count)],
            row_group_size=50,
        )
        command = [sys.executable, "-c", PEAK, str(path), str(tmp_path / "out.parquet")]
        stdout = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout
        assert pq.read_metadata(tmp_path / "out.parquet").num_rows == count
        return int(stdout)

    small = peak(300)
    assert 0 < peak(900) < 1.2 * small


def test_late_jsonl_columns_and_leading_nulls_keep_their_type(tmp_path: Path):
    lines = [
        {"instance_id": f"row-{n}", "late": None if n < 90 else "text", "when": "2024-01-02"}
        | ({"new": [n]} if n > 80 else {})
        for n in range(100)
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    written = rows.write([tmp_path / "in.jsonl"], Selection(), tmp_path / "out.parquet", "here")
    assert written.columns["late"] == written.columns["when"] == "string" and written.images is None
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == [
        {"instance_id": line["instance_id"], "late": line["late"], "when": line["when"], "new": line.get("new")}
        for line in lines
    ]
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n{"a": ')
    with pytest.raises(DatasetError, match="bad.jsonl cannot be read as jsonl"):
        rows.write([tmp_path / "bad.jsonl"], Selection(), tmp_path / "bad.parquet", "here")
    assert not (tmp_path / "bad.parquet").exists()
