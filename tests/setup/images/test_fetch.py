"""Fetches by `python -m setup.images`: shared layers, kills, concurrent runs, retries, disk limits."""

import signal
import threading
from pathlib import Path

import pytest

from agent_server.sandboxes import apptainer
from setup.images.registry import ARCHITECTURE
from tests.setup.images.conftest import (
    NAMES,
    TAGS,
    Command,
    assert_nothing_half_built,
    top_bytes,
    top_layer,
    wait_until,
)
from tests.setup.images.oci import BASE_BYTES, TOP_BYTES, Registry, base_layer_bytes, digest_of


def test_a_shared_base_is_downloaded_once(command: Command, proxy, layout: Path, tmp_path: Path):
    ran = command.run("--jobs", "3", "--verify")
    assert ran.returncode == 0, ran.stderr
    assert command.states() == dict.fromkeys(NAMES, "fetched")
    base = base_layer_bytes(layout)
    assert base < proxy.blob_bytes <= 1.3 * base
    # The base, three layers, three configurations.
    assert sum("/blobs/" in path for path in proxy.requests) == 1 + 3 + 3
    assert [top_bytes(command.sif(tag), tmp_path) for tag in TAGS] == [TOP_BYTES] * 3
    assert_nothing_half_built(command)


def test_an_intact_image_is_kept_without_a_request(command: Command, proxy):
    command.set_rows(NAMES[0])
    assert command.run().returncode == 0
    before, requests = command.sif("one").stat().st_mtime_ns, len(proxy.requests)
    ran = command.run("--verify")
    assert (ran.returncode, command.states(), command.sif("one").stat().st_mtime_ns) == (
        0,
        {NAMES[0]: "present"},
        before,
    )
    assert len(proxy.requests) == requests


def test_directories(command: Command, tmp_path: Path):
    ran = command.run("--form", "directory", "--verify")
    assert ran.returncode == 0, ran.stderr
    for tag in TAGS:
        path = apptainer.image_path(command.images, f"swe/task:{tag}")
        assert path.is_dir() and top_bytes(path, tmp_path) == TOP_BYTES
    assert command.run().returncode == 0 and set(command.states().values()) == {"present"}
    assert_nothing_half_built(command)


def test_concurrent_commands_share_one_fetch(command: Command, proxy):
    processes = [command.start("--jobs", "2"), command.start("--jobs", "2")]
    stderr = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], stderr
    assert sum("waiting for it" in text for text in stderr) == 1
    assert sum("/blobs/" in path for path in proxy.requests) == 7
    assert sorted(command.images.glob("*.sif")) == sorted(map(command.sif, TAGS))


def test_a_kill_during_a_build(command: Command, proxy, leftover_processes):
    process = command.start("--jobs", "1")
    wait_until(
        lambda: any((build / "tmp").is_dir() and any((build / "tmp").iterdir()) for build in command.builds),
        process,
    )
    process.kill()
    process.wait()
    process.stdout.close(), process.stderr.close()
    assert not list(command.images.glob("*.sif")) and len(command.builds) == 1
    downloaded = proxy.blob_bytes
    ran = command.run("--verify")
    assert ran.returncode == 0 and "removed 1 half-built" in ran.stderr, ran.stderr
    assert command.states() == dict.fromkeys(NAMES, "fetched")
    assert proxy.blob_bytes - downloaded < 0.1 * BASE_BYTES, "the complete layer is not downloaded again"
    assert_nothing_half_built(command)
    assert leftover_processes() == []


def test_a_kill_during_a_download(command: Command, proxy, leftover_processes):
    proceed = threading.Event()
    proxy.before = lambda path: proceed.wait(60) and None if "/blobs/" in path else None
    process = command.start()
    wait_until(lambda: any("/blobs/" in path for path in proxy.requests), process)
    process.kill()
    process.wait()
    process.stdout.close(), process.stderr.close()
    assert leftover_processes() == [], "its child programs end with it"
    proceed.set()
    assert not list(command.images.glob("*.sif")) and len(command.builds) == 1
    assert command.run("--verify").returncode == 0
    assert_nothing_half_built(command)


@pytest.mark.parametrize("signum, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_everything_at_once(command: Command, proxy, leftover_processes, signum: int, code: int):
    proceed = threading.Event()
    proxy.before = lambda path: proceed.wait(60) and None if "/blobs/" in path else None
    process = command.start()
    wait_until(lambda: any("/blobs/" in path for path in proxy.requests), process)
    process.send_signal(signum)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == code and "Traceback" not in stderr, stderr
    assert leftover_processes() == []
    proceed.set()


def test_this_machines_architecture_is_selected(command: Command, registry: Registry, layout: Path, tmp_path: Path):
    registry.push_index(
        "swe/task", "several", {"riscv64": digest_of(layout, "two"), ARCHITECTURE: digest_of(layout, "one")}
    )
    registry.push_index("swe/task", "foreign", {"riscv64": digest_of(layout, "two")})
    command.set_rows(NAMES[0], "swe/task:several", "swe/task:foreign", f"swe/task@{digest_of(layout, 'one')}")
    assert command.run().returncode == 1
    states = command.states()
    assert states.pop("swe/task:foreign") == "missing" and set(states.values()) == {"fetched"}, command.report()
    assert f"not for linux/{ARCHITECTURE}" in command.report()["swe/task:foreign"]["reason"]
    by_digest = command.images / f"swe__task@{digest_of(layout, 'one').replace(':', '__')}.sif"
    assert len({top_layer(path, tmp_path) for path in (command.sif("one"), command.sif("several"), by_digest)}) == 1


def test_only_transient_errors_are_retried(command: Command, proxy):
    errors = {"one": 2, "two": 99}

    def before(path: str) -> int | None:
        tag = path.rpartition("/")[2]
        if errors.get(tag, 0):
            errors[tag] -= 1
            return 503
        return None

    proxy.before = before
    command.set_rows(*NAMES[:2], "swe/task:never")
    ran = command.run("--attempts", "3")
    assert ran.returncode == 1
    assert command.states() == {NAMES[0]: "fetched", NAMES[1]: "failed", "swe/task:never": "missing"}, ran.stderr
    assert "503" in command.report()[NAMES[1]]["reason"] and "(attempt 2 of 3)" in ran.stderr
    assert [sum(path.endswith(f"/manifests/{tag}") for path in proxy.requests) for tag in ("one", "two", "never")] == [
        3,
        3,
        1,
    ]


def test_the_disk_budget_is_never_exceeded(command: Command):
    # One image needs up to 8 + 8 * 4.1 MB. Afterwards its 8 MB and 8 MB of layers are stored.
    ran = command.run("--jobs", "3", "--disk-gb", "0.05")
    assert ran.returncode == 1
    assert sorted(command.states().values()) == ["fetched", "no room", "no room"], ran.stderr
    reasons = [image["reason"] for image in command.report().values() if image["state"] == "no room"]
    assert all("--disk-gb is 0.05 GB" in reason and "too much; raise it" in reason for reason in reasons)
    assert command.run("--disk-gb", "1").returncode == 0
    assert_nothing_half_built(command)


def test_reserved_free_space_is_kept(command: Command):
    ran = command.run("--keep-free-gb", "1e6")
    assert ran.returncode == 1
    assert set(command.states().values()) == {"no room"} and "must stay free" in command.report()[NAMES[0]]["reason"]
    assert not list(command.images.glob("*.sif"))


def test_a_dry_run_fetches_nothing(command: Command, proxy):
    ran = command.run("--dry-run")
    assert ran.returncode == 1 and set(command.states().values()) == {"to fetch"}
    assert proxy.requests == [] and not list(command.images.glob("*.sif"))


def test_prune_removes_unreferenced_images(command: Command):
    assert command.run().returncode == 0
    (command.images / "notes.txt").write_text("mine")
    (command.images / "mine").mkdir()
    old = command.images / "old"
    (old / ".singularity.d").mkdir(parents=True)
    command.set_rows(NAMES[1])
    ran = command.run("--prune", "--dry-run")
    assert (
        ran.returncode == 0
        and "3 images that no row names" in ran.stdout
        and str(old) in ran.stdout
        and str(command.sif("one")) in ran.stdout
    )
    assert command.sif("one").exists() and old.exists()
    assert command.run("--prune").returncode == 0
    assert sorted(path.name for path in command.images.iterdir()) == [
        ".fetching",
        "mine",
        "notes.txt",
        command.sif("two").name,
    ]
    assert_nothing_half_built(command)
