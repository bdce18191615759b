"""Downloads of `python -m setup.data fetch`: resumed, verified, shared by concurrent runs, refused on a full disk."""

import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.setup.data.conftest import Command
from tests.setup.data.sample_repository import DATASET, FILES, incompressible_parquet, row_ids, sample_rows

CHUNK = 10 << 20  # bytes that the library writes at once


def wait_for_first_chunk(command: Command, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while not any(partial.stat().st_size >= CHUNK for partial in command.partial_blobs()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)


def test_a_killed_download_resumes_at_its_last_byte(command: Command):
    data = incompressible_parquet(sample_rows(0, 20), CHUNK + (4 << 20))
    command.hub.add(DATASET, {"data/train.parquet": data})
    command.hub.slow_after = CHUNK + (1 << 20)
    process = command.start("fetch", str(command.folder), "train", "r2e-gym-subset")
    wait_for_first_chunk(command, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (partial,) = command.partial_blobs()
    offset = partial.stat().st_size
    assert CHUNK <= offset < len(data) and command.visible_files() == set()

    command.hub.slow_after = None
    stderr = command.fetch()
    assert f"({offset / 1e6:.1f} MB in the cache)" in stderr
    resumed = command.hub.requests_to("/cdn/")[-1]
    assert resumed.headers["range"] == f"bytes={offset}-" and resumed.sent == len(data) - offset
    assert (
        command.ids() == row_ids(0, 20)
        and command.visible_files() == {"train.parquet", "manifest.json"}
        and not command.partial_blobs()
    )


def test_kills_at_any_moment_leave_nothing_half_written(command: Command):
    command.hub.add(
        DATASET,
        {
            "a/train-00000-of-00002.parquet": incompressible_parquet(sample_rows(0, 400), 12 << 20),
            "a/train-00001-of-00002.parquet": incompressible_parquet(sample_rows(400, 800), 12 << 20),
        },
    )
    kills = 0
    for wait_s in (0.3, 0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.7):
        process = command.start("fetch", str(command.folder), "train", "r2e-gym-subset")
        try:
            process.communicate(timeout=wait_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += 1
        if "train.parquet" in command.visible_files():
            assert command.ids() == row_ids(0, 800)
    command.fetch()
    assert kills and command.ids() == row_ids(0, 800)
    assert command.run("check", str(command.folder)).endswith("matches its manifest\n")
    assert {path.name for path in command.folder.iterdir()} == {
        "train.parquet",
        "manifest.json",
        ".lock",
    } and not command.partial_blobs()


def test_an_interrupt_keeps_the_downloaded_bytes(command: Command):
    command.hub.add(DATASET, {"train.parquet": incompressible_parquet(sample_rows(0, 20), CHUNK + (4 << 20))})
    command.hub.slow_after = CHUNK + (1 << 20)
    process = command.start("fetch", str(command.folder), "train", "r2e-gym-subset")
    wait_for_first_chunk(command, process)
    process.send_signal(signal.SIGINT)
    stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "the same command continues" in stderr and "Traceback" not in stderr
    assert command.partial_blobs() and command.visible_files() == set()


def test_a_wrong_partial_download_is_replaced(command: Command):
    command.hub.add(DATASET, FILES)
    command.fetch()
    for blob in command.cache.glob("hub/datasets--*/blobs/*"):
        if len(blob.name) == 64:
            blob.with_name(blob.name + ".incomplete").write_bytes(b"something else, shorter")
            blob.unlink()
    command.fetch("train", "r2e-gym-subset", "--skip", "1")
    assert command.ids() == row_ids(1, 60) and not command.partial_blobs()


def test_a_damaged_file_in_the_cache_is_downloaded_again(command: Command):
    command.hub.add(DATASET, FILES)
    command.fetch()
    for blob in command.cache.glob("hub/datasets--*/blobs/*"):
        blob.write_bytes(b"x" * blob.stat().st_size)
    command.fetch("train", "r2e-gym-subset", "--skip", "1")
    assert command.ids() == row_ids(1, 60)


@pytest.mark.parametrize("name", ["data/train-00001-of-00002.parquet", "small.jsonl"])
def test_bytes_with_a_wrong_checksum_are_refused(command: Command, name: str):
    files = FILES if "parquet" in name else {name: b'{"instance_id": "row-0"}\n'}
    command.hub.add(DATASET, files)
    command.hub.replaced = {name: b"x" * len(files[name])}
    dataset = DATASET if "parquet" not in name else DATASET + ":train"
    stderr = command.fetch("train", dataset, code=78)
    assert f"{name} has the checksum" in stderr and "run this again" in stderr and command.visible_files() == set()
    command.hub.replaced = {}
    command.fetch("train", dataset)
    assert command.run("check", str(command.folder))


def test_concurrent_runs_share_one_download(command: Command):
    data = incompressible_parquet(sample_rows(0, 20), 2 << 20)
    command.hub.add(DATASET, {"train.parquet": data})
    command.hub.slow_after = 1 << 20
    runs = [
        command.start("fetch", str(folder), "train", "r2e-gym-subset")
        for folder in (command.folder, command.folder, command.folder.with_name("other"))
    ]
    stderr = [process.communicate(timeout=120)[1] for process in runs]
    assert [process.returncode for process in runs] == [0, 0, 0], stderr
    assert command.sent_bytes() == len(data) and command.ids() == row_ids(0, 20)
    assert any("nothing to do" in text for text in stderr[:2])


@contextmanager
def small_disk(folder: Path, size: int):
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_an_error_and_changes_nothing(command: Command, tmp_path: Path):
    command.hub.add(DATASET, {"train.parquet": incompressible_parquet(sample_rows(0, 20), 6 << 20)})
    with small_disk(tmp_path / "small", 4 << 20):
        stderr = command.fetch(code=74, HF_HOME=str(tmp_path / "small"))
        assert "MB free; free some space there, or set HF_HOME" in stderr and command.visible_files() == set()
        command.folder = tmp_path / "small" / "rows"
        command.fetch("train", "r2e-gym-subset", "--limit", "3")
        assert "is full, train.parquet was not written" in command.fetch(code=74)
        assert command.ids() == row_ids(0, 3) and command.run("check", str(command.folder))
        assert {path.name for path in command.folder.iterdir()} == {"train.parquet", "manifest.json", ".lock"}
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "small")], check=True)
        stderr = command.fetch("eval", code=74)
        assert "choose a writable folder" in stderr and "Traceback" not in stderr
