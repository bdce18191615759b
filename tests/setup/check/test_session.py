"""setup/check.sh --session: a sound node passes and stays unchanged, faults are reported, SIGTERM ends the server."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as parquet

from tests.setup.check.conftest import BASH_LINES, PYTHON_LINES, assert_only
from tests.setup.conftest import ROOT

SCRATCH_PREFIX = b"/swe-rl-check-"


def test_a_sound_node_passes_with_a_session_and_is_unchanged(check):
    table = check("--session")
    assert (table.code, table.failed) == (0, []), table.output
    assert table.names == [*BASH_LINES, *PYTHON_LINES, "session"]
    assert table.status["sandbox"] == table.status["session"] == "ok"
    assert "2 model calls, reward 1, all stopped" in table.text["session"]


def test_an_unbuilt_demo_fails_only_the_session(check, tmp_path: Path):
    table = check("--session", SWE_RL_CACHE=str(tmp_path / "empty"))
    assert_only(table, "session", "demo's rows cannot be read", "bash setup/demo/image.sh")
    assert table.status["rows"] == table.status["sandbox"] == "warn"


def test_a_session_without_its_reward_fails(check, tmp_path: Path, demo_cache: Path):
    demo = tmp_path / "cache" / "demo"
    (demo / "tasks").mkdir(parents=True)
    (demo / "images").symlink_to(demo_cache / "images")
    row = parquet.read_table(demo_cache / "tasks" / "train.parquet").to_pylist()[0]
    for mode in ("train", "eval"):
        (demo / "tasks" / f"{mode}.jsonl").write_text(
            json.dumps(row | {"FAIL_TO_PASS": [*row["FAIL_TO_PASS"], f"{row['file']}::test_nowhere"]}) + "\n"
        )
    assert_only(
        check("--session", SWE_RL_CACHE=str(demo.parent)),
        "session",
        f"the right fix of {row['instance_id']} earned 0.0",
        "build the demo again",
    )


def test_sigterm_ends_the_check_and_its_server(
    environment: dict[str, str], leftover_processes: Callable[[], list[int]], process_tag: str
):
    process = subprocess.Popen(
        ["bash", str(ROOT / "setup/check.sh"), "--session"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while (
        not (server_runs := any(SCRATCH_PREFIX in environ for environ in environments_with(process_tag)))
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 143
    assert server_runs and leftover_processes() == []
    assert list(Path(environment["TMPDIR"]).iterdir()) == []


def environments_with(process_tag: str) -> list[bytes]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if process_tag.encode() in (content := entry.read_bytes()):
                found.append(content)
        except OSError:
            continue
    return found
