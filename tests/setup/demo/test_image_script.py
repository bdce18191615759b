"""setup/demo/image.sh: one build per version of its sources, complete or not at all."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.setup.conftest import ROOT, FakeMachine

IMAGE, STAMP = "images/demo__quickstart__1.sif", "tasks/.made-from"


@pytest.fixture
def build_machine(fake_machine: FakeMachine) -> FakeMachine:
    fake_machine.add("apptainer", "mksquashfs", "mmdebstrap")
    return fake_machine


def leftovers(cache: Path) -> list[Path]:
    return [path for path in cache.glob("build.*") if path.is_dir()]


def test_a_finished_image_is_kept(demo_cache: Path):
    before = {
        path: path.stat().st_mtime_ns
        for path in demo_cache.rglob("*")
        if path.is_file() and path.parent.name in ("images", "tasks")
    }
    assert demo_cache / IMAGE in before
    ran = subprocess.run(
        ["bash", str(ROOT / "setup/demo/image.sh"), sys.executable, str(demo_cache)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_failed_build_leaves_nothing_under_a_final_name(build_machine: FakeMachine, tmp_path: Path):
    build_machine.stub("mmdebstrap", "echo E: the mirror is gone >&2; exit 25")
    cache = tmp_path / "cache"
    ran = build_machine.run("setup/demo/image.sh", sys.executable, str(cache))
    assert ran.returncode == 78
    assert "E: the mirror is gone" in ran.stderr and "remedy:" in ran.stderr
    assert not (cache / IMAGE).exists() and not (cache / STAMP).exists() and not leftovers(cache)


def test_an_interrupted_build_leaves_nothing(build_machine: FakeMachine, tmp_path: Path):
    build_machine.stub("mmdebstrap", 'for last in "$@"; do :; done; touch "$0.started"; exec sleep 60')
    cache = tmp_path / "cache"
    command = ["bash", str(ROOT / "setup/demo/image.sh"), sys.executable, str(cache)]
    building = subprocess.Popen(
        command,
        env=build_machine.environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (build_machine.programs / "mmdebstrap.started").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert leftovers(cache), "the build has started"
    os.killpg(building.pid, signal.SIGINT)
    assert building.wait(timeout=30) != 0
    assert not (cache / IMAGE).exists() and not leftovers(cache)


def test_changed_tables_cause_a_new_build(build_machine: FakeMachine, demo_cache: Path, tmp_path: Path):
    cache = tmp_path / "cache"
    shutil.copytree(demo_cache / "tasks", cache / "tasks")
    (cache / "images").mkdir()
    (cache / IMAGE).write_text("an image")
    (cache / STAMP).write_text("made from other tables\n")
    build_machine.stub("mmdebstrap", "exit 1")
    build_machine.run("setup/demo/image.sh", sys.executable, str(cache))
    assert any(call.startswith("mmdebstrap") for call in build_machine.calls)
    assert not (cache / STAMP).exists(), "a failed build is repeated by the next run"


def test_a_full_disk_is_an_error_before_the_build(build_machine: FakeMachine, tmp_path: Path):
    cache = tmp_path / "small"
    cache.mkdir()
    build_machine.stub("mmdebstrap", "exit 1")
    build_machine.add("mount")
    script = f"mount -t tmpfs -o size=8m none {cache} && exec bash {ROOT}/setup/demo/image.sh {sys.executable} {cache}"
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        env=build_machine.environment() | {"PATH": f"{build_machine.programs}:/usr/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 78
    assert "needs 1500 MB free" in ran.stderr and "which has 8 MB" in ran.stderr and "SWE_RL_CACHE" in ran.stderr
    assert build_machine.calls == []
