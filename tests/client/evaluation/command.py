"""The evaluation command under test: its tasks, its end, the files it writes."""

import json
import subprocess
from pathlib import Path

import pyarrow.parquet as parquet

from tests.agent_server.conftest import DEMO

ROWS = parquet.read_table(DEMO / "tasks" / "train.parquet").to_pylist()[:2]
TASK_A, TASK_B = (row["instance_id"] for row in ROWS)
TEXT = {row["instance_id"]: row["problem_statement"] for row in ROWS}
FIX = {row["instance_id"]: f"git apply -R <<'END'\n{row['patch'].rstrip()}\nEND" for row in ROWS}
WRONG = {row["instance_id"]: f"echo 'raise ValueError' >> {row['file']}" for row in ROWS}


def finish(process: subprocess.Popen, code: int) -> tuple[str, str]:
    """Wait for the command to exit with this code; its stdout and stderr."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, out + err
    return out, err


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read_results(tmp_path: Path) -> dict[tuple[str, int], dict]:
    """The last line of results.jsonl for each task and sample index."""
    return {(line["task_id"], line["sample"]): line for line in read_lines(tmp_path / "out" / "results.jsonl")}


def read_summary(tmp_path: Path) -> dict:
    return json.loads((tmp_path / "out" / "summary.json").read_text())
