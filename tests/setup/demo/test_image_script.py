"""setup/demo/image.sh: builds once, whole or not at all."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.setup.conftest import ROOT, World

IMAGE, STAMP = "images/demo__quickstart__1.sif", "tasks/.made-from"


@pytest.fixture
def build_world(world: World) -> World:
    world.add("apptainer", "mksquashfs", "mmdebstrap")
    return world


def leftovers(cache: Path) -> list[Path]:
    return [path for path in cache.glob("build.*") if path.is_dir()]


def test_what_is_built_stays(demo_cache: Path):
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


def test_a_failed_build_leaves_nothing_under_a_final_name(build_world: World, tmp_path: Path):
    build_world.stub("mmdebstrap", "echo E: the mirror is gone >&2; exit 25")
    cache = tmp_path / "cache"
    ran = build_world.run("setup/demo/image.sh", sys.executable, str(cache))
    assert ran.returncode == 78
    assert "E: the mirror is gone" in ran.stderr and "remedy:" in ran.stderr
    assert not (cache / IMAGE).exists() and not (cache / STAMP).exists() and not leftovers(cache)


def test_a_build_that_is_interrupted_leaves_nothing(build_world: World, tmp_path: Path):
    build_world.stub("mmdebstrap", 'for last in "$@"; do :; done; touch "$0.started"; exec sleep 60')
    cache = tmp_path / "cache"
    command = ["bash", str(ROOT / "setup/demo/image.sh"), sys.executable, str(cache)]
    building = subprocess.Popen(
        command,
        env=build_world.environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (build_world.programs / "mmdebstrap.started").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert leftovers(cache), "the build should be under way"
    os.killpg(building.pid, signal.SIGINT)
    assert building.wait(timeout=30) != 0
    assert not (cache / IMAGE).exists() and not leftovers(cache)


def test_an_older_image_is_built_again_when_the_tables_change(build_world: World, demo_cache: Path, tmp_path: Path):
    cache = tmp_path / "cache"
    shutil.copytree(demo_cache / "tasks", cache / "tasks")
    (cache / "images").mkdir()
    (cache / IMAGE).write_text("an image")
    (cache / STAMP).write_text("made from other tables\n")
    build_world.stub("mmdebstrap", "exit 1")
    build_world.run("setup/demo/image.sh", sys.executable, str(cache))
    assert any(call.startswith("mmdebstrap") for call in build_world.calls)
    assert not (cache / STAMP).exists(), "a build that did not end well must be tried again"


def test_a_full_disk_is_named_before_anything_is_built(build_world: World, tmp_path: Path):
    cache = tmp_path / "small"
    cache.mkdir()
    build_world.stub("mmdebstrap", "exit 1")
    build_world.add("mount")
    script = f"mount -t tmpfs -o size=8m none {cache} && exec bash {ROOT}/setup/demo/image.sh {sys.executable} {cache}"
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        env=build_world.environment() | {"PATH": f"{build_world.programs}:/usr/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 78
    assert "needs 1500 MB free" in ran.stderr and "which has 8 MB" in ran.stderr and "SWE_RL_CACHE" in ran.stderr
    assert build_world.calls == []
