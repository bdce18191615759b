"""python -m setup.images against a real registry: what it brings, what it says, and what a kill leaves."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agent_server.sandboxes import apptainer
from setup.images.registry import ARCHITECTURE
from tests.setup.conftest import ROOT
from tests.setup.images.oci import (
    BASE_BYTES,
    PASSWORD,
    TOP_BYTES,
    USER,
    Registry,
    base_layer_bytes,
    digest_of,
    make_images,
    wire_to,
)

TAGS = ["one", "two", "three"]
NAMES = [f"swe/task:{tag}" for tag in TAGS]


@pytest.fixture(scope="module")
def layout(tmp_path_factory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"), TAGS)


@pytest.fixture(scope="module")
def registry(tmp_path_factory, layout: Path):
    with Registry(tmp_path_factory.mktemp("open") / "registry") as registry:
        for tag in TAGS:
            registry.push(layout, tag, f"swe/task:{tag}")
        yield registry


@pytest.fixture
def wire(registry: Registry):
    with wire_to(registry) as wire:
        yield wire


class Machine:
    """A folder for images, rows that name some, and the command."""

    def __init__(self, folder: Path, address: str, word: str):
        self.folder, self.images, self.address, self.word = folder, folder / "images", address, word
        (folder / "home").mkdir()
        self.name(*NAMES)

    def name(self, *names: str) -> None:
        (self.folder / "rows.jsonl").write_text(
            "".join(json.dumps({"instance_id": f"task-{name}", "image_name": name}) + "\n" for name in names)
        )

    def sif(self, tag: str) -> Path:
        return self.images / f"swe__task__{tag}.sif"

    @property
    def attempts(self) -> list[Path]:
        return list((self.images / ".fetching/attempts").glob("*"))

    def start(self, *options: str, **environment: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "setup.images",
            "--mirror",
            self.address,
            "--no-https",
            "--keep-free-gb",
            "0.1",
            "--json",
            str(self.folder / "report.json"),
            *options,
        ]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("APPTAINER_", "DOCKER_"))}
        ours = {
            "R2E_DATA_PATH": str(self.folder / "rows.jsonl"),
            "R2E_SIF_DIR": str(self.images),
            "HOME": str(self.folder / "home"),
            "WORD": self.word,
        }
        return subprocess.Popen(
            command,
            env=clean | ours | environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*options, **environment)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def report(self) -> dict[str, dict]:
        return {image["name"]: image for image in json.loads((self.folder / "report.json").read_text())["images"]}

    def states(self) -> dict[str, str]:
        return {name: image["state"] for name, image in self.report().items()}


@pytest.fixture
def machine(tmp_path: Path, wire, word: str) -> Machine:
    return Machine(tmp_path, wire.address, word)


def until(condition, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.001)


def top_of(image: Path, tmp_path: Path) -> str:
    """Size and checksum of the file that only the image's own layer holds, read in a sandbox."""
    shell = apptainer.start(image, scratch=tmp_path, env={}, start_timeout_s=60)
    try:
        return shell.run("busybox stat -c %s /top; busybox sha256sum /top", cwd="/", timeout_s=60).output
    finally:
        shell.close()


def content_of(image: Path, tmp_path: Path) -> int:
    return int(top_of(image, tmp_path).split()[0])


def assert_nothing_half_made(machine: Machine) -> None:
    assert machine.attempts == []
    assert list((machine.images / ".fetching/blobs/sha256").iterdir()) == []


def test_images_of_one_base_bring_it_once(machine: Machine, wire, layout: Path, tmp_path: Path):
    ran = machine.run("--jobs", "3", "--verify")
    assert ran.returncode == 0, ran.stderr
    assert machine.states() == dict.fromkeys(NAMES, "fetched")
    base = base_layer_bytes(layout)
    assert base < wire.bytes_of_blobs <= 1.3 * base
    assert sum("/blobs/" in path for path in wire.requests) == 1 + 3 + 3  # the base, three layers, three configurations
    assert [content_of(machine.sif(tag), tmp_path) for tag in TAGS] == [TOP_BYTES] * 3
    assert_nothing_half_made(machine)


def test_what_is_there_stays_and_asks_the_registry_nothing(machine: Machine, wire):
    machine.name(NAMES[0])
    assert machine.run().returncode == 0
    before, asked = machine.sif("one").stat().st_mtime_ns, len(wire.requests)
    ran = machine.run("--verify")
    assert (ran.returncode, machine.states(), machine.sif("one").stat().st_mtime_ns) == (
        0,
        {NAMES[0]: "present"},
        before,
    )
    assert len(wire.requests) == asked


def test_directories(machine: Machine, tmp_path: Path):
    ran = machine.run("--form", "directory", "--verify")
    assert ran.returncode == 0, ran.stderr
    for tag in TAGS:
        path = apptainer.image_path(machine.images, f"swe/task:{tag}")
        assert path.is_dir() and content_of(path, tmp_path) == TOP_BYTES
    assert machine.run().returncode == 0 and set(machine.states().values()) == {"present"}
    assert_nothing_half_made(machine)


def test_two_commands_at_once(machine: Machine, wire):
    both = [machine.start("--jobs", "2"), machine.start("--jobs", "2")]
    said = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sum("waiting for it" in text for text in said) == 1
    assert sum("/blobs/" in path for path in wire.requests) == 7
    assert sorted(machine.images.glob("*.sif")) == sorted(map(machine.sif, TAGS))


def test_a_kill_in_the_middle_of_a_build(machine: Machine, wire, left_alive):
    process = machine.start("--jobs", "1")
    until(
        lambda: any((attempt / "tmp").is_dir() and any((attempt / "tmp").iterdir()) for attempt in machine.attempts),
        process,
    )
    process.kill()
    process.wait()
    process.stdout.close(), process.stderr.close()
    assert not list(machine.images.glob("*.sif")) and len(machine.attempts) == 1
    brought = wire.bytes_of_blobs
    ran = machine.run("--verify")
    assert ran.returncode == 0 and "removed 1 half-made" in ran.stderr, ran.stderr
    assert machine.states() == dict.fromkeys(NAMES, "fetched")
    assert wire.bytes_of_blobs - brought < 0.1 * BASE_BYTES, "the layer that was whole is not brought again"
    assert_nothing_half_made(machine)
    assert left_alive() == []


def test_a_kill_in_the_middle_of_a_download(machine: Machine, wire, left_alive):
    go_on = threading.Event()
    wire.before = lambda path: go_on.wait(60) and None if "/blobs/" in path else None
    process = machine.start()
    until(lambda: any("/blobs/" in path for path in wire.requests), process)
    process.kill()
    process.wait()
    process.stdout.close(), process.stderr.close()
    assert left_alive() == [], "its programs end with it"
    go_on.set()
    assert not list(machine.images.glob("*.sif")) and len(machine.attempts) == 1
    assert machine.run("--verify").returncode == 0
    assert_nothing_half_made(machine)


@pytest.mark.parametrize("signum, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_everything_at_once(machine: Machine, wire, left_alive, signum: int, code: int):
    go_on = threading.Event()
    wire.before = lambda path: go_on.wait(60) and None if "/blobs/" in path else None
    process = machine.start()
    until(lambda: any("/blobs/" in path for path in wire.requests), process)
    process.send_signal(signum)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code and "Traceback" not in said, said
    assert left_alive() == []
    go_on.set()


def test_a_missing_image_is_reported_and_the_others_are_fetched(machine: Machine):
    machine.name(NAMES[0], "swe/task:never", "nobody/knows", NAMES[1])
    ran = machine.run()
    assert ran.returncode == 1
    assert machine.states() == {
        NAMES[0]: "fetched",
        "swe/task:never": "missing",
        "nobody/knows": "missing",
        NAMES[1]: "fetched",
    }
    assert "the registry has no" in machine.report()["swe/task:never"]["reason"]
    table = ran.stdout.splitlines()
    assert [line.split() for line in table[1:3]] == [["fetched", "2"], ["missing", "2"]]
    assert any(line.startswith("missing   swe/task:never: ") for line in table)


def test_of_several_architectures_this_machines_is_taken(
    machine: Machine, registry: Registry, layout: Path, tmp_path: Path
):
    registry.push_index(
        "swe/task", "several", {"riscv64": digest_of(layout, "two"), ARCHITECTURE: digest_of(layout, "one")}
    )
    registry.push_index("swe/task", "foreign", {"riscv64": digest_of(layout, "two")})
    machine.name(NAMES[0], "swe/task:several", "swe/task:foreign", f"swe/task@{digest_of(layout, 'one')}")
    assert machine.run().returncode == 1
    assert list(machine.states().values()).count("fetched") == 3 and machine.states()["swe/task:foreign"] == "missing"
    assert f"not for linux/{ARCHITECTURE}" in machine.report()["swe/task:foreign"]["reason"]
    by_digest = machine.images / f"swe__task@{digest_of(layout, 'one').replace(':', '__')}.sif"
    assert len({top_of(path, tmp_path) for path in (machine.sif("one"), machine.sif("several"), by_digest)}) == 1


def test_transient_faults_are_tried_again_and_lasting_ones_are_not(machine: Machine, wire):
    faults = {"one": 2, "two": 99}

    def before(path: str) -> int | None:
        tag = path.rpartition("/")[2]
        if faults.get(tag, 0):
            faults[tag] -= 1
            return 503
        return None

    wire.before = before
    machine.name(*NAMES[:2], "swe/task:never")
    ran = machine.run("--attempts", "3")
    assert ran.returncode == 1
    assert machine.states() == {NAMES[0]: "fetched", NAMES[1]: "failed", "swe/task:never": "missing"}, ran.stderr
    assert "503" in machine.report()[NAMES[1]]["reason"] and "(attempt 2 of 3)" in ran.stderr
    assert [sum(path.endswith(f"/manifests/{tag}") for path in wire.requests) for tag in ("one", "two", "never")] == [
        3,
        3,
        1,
    ]


def test_broken_images_are_found_and_fetched_again(machine: Machine, tmp_path: Path):
    assert machine.run().returncode == 0
    os.truncate(machine.sif("one"), machine.sif("one").stat().st_size // 2)  # its head is whole: only opening it shows
    machine.sif("two").write_bytes(b"<html>not found</html>")
    assert machine.run().returncode == 0
    assert machine.states() == {NAMES[0]: "present", NAMES[1]: "fetched", NAMES[2]: "present"}
    ran = machine.run("--verify")
    assert ran.returncode == 0, ran.stderr
    assert machine.states() == {NAMES[0]: "fetched", NAMES[1]: "present", NAMES[2]: "present"}
    assert "was broken" in machine.report()[NAMES[0]]["reason"]
    assert content_of(machine.sif("one"), tmp_path) == TOP_BYTES


def test_a_broken_image_that_the_registry_lost_is_named(machine: Machine):
    machine.images.mkdir()
    (machine.images / "swe__task__never.sif").write_bytes(b"no image")
    machine.name("swe/task:never")
    assert machine.run().returncode == 1
    outcome = machine.report()["swe/task:never"]
    assert (
        outcome["state"] == "broken"
        and "not a SIF file" in outcome["reason"]
        and "manifest unknown" in outcome["reason"]
    )


@pytest.mark.parametrize("lost", ["bash", "env"])
def test_a_directory_in_which_nothing_runs_is_broken(machine: Machine, tmp_path: Path, lost: str):
    machine.name(NAMES[0])
    assert machine.run("--form", "directory").returncode == 0
    path = apptainer.image_path(machine.images, NAMES[0])
    (path / "bin" / lost).unlink()
    assert machine.run("--form", "directory", "--verify").returncode == 0
    assert machine.states() == {NAMES[0]: "fetched"} and content_of(path, tmp_path) == TOP_BYTES
    assert_nothing_half_made(machine)


def test_the_disk_budget_stops_before_it_is_passed(machine: Machine):
    ran = machine.run(
        "--jobs", "3", "--disk-gb", "0.05"
    )  # one needs up to 8 + 8 * 4.1 MB; then 8 MB of image and 8 of layers are there
    assert ran.returncode == 1
    assert sorted(machine.states().values()) == ["fetched", "no room", "no room"], ran.stderr
    reasons = [image["reason"] for image in machine.report().values() if image["state"] == "no room"]
    assert all("--disk-gb is 0.05 GB" in reason and "more than there is; raise it" in reason for reason in reasons)
    assert machine.run("--disk-gb", "1").returncode == 0
    assert_nothing_half_made(machine)


def test_free_space_is_kept(machine: Machine):
    ran = machine.run("--keep-free-gb", "1e6")
    assert ran.returncode == 1
    assert set(machine.states().values()) == {"no room"} and "must stay free" in machine.report()[NAMES[0]]["reason"]
    assert not list(machine.images.glob("*.sif"))


def test_prune_removes_what_no_row_names(machine: Machine):
    assert machine.run().returncode == 0
    (machine.images / "notes.txt").write_text("mine")
    (machine.images / "mine").mkdir()
    old = machine.images / "old"
    (old / ".singularity.d").mkdir(parents=True)
    machine.name(NAMES[1])
    ran = machine.run("--prune", "--dry-run")
    assert (
        ran.returncode == 0
        and "3 images that no row names" in ran.stdout
        and str(old) in ran.stdout
        and str(machine.sif("one")) in ran.stdout
    )
    assert machine.sif("one").exists() and old.exists()
    assert machine.run("--prune").returncode == 0
    assert sorted(path.name for path in machine.images.iterdir()) == [
        ".fetching",
        "mine",
        "notes.txt",
        machine.sif("two").name,
    ]
    assert_nothing_half_made(machine)


def test_a_dry_run_fetches_nothing(machine: Machine, wire):
    ran = machine.run("--dry-run")
    assert ran.returncode == 1 and set(machine.states().values()) == {"to fetch"}
    assert wire.requests == [] and not list(machine.images.glob("*.sif"))


def test_credentials_and_their_lack_are_told_apart_from_a_missing_image(tmp_path: Path, layout: Path, word: str):
    with Registry(tmp_path / "registry", password=True) as registry, wire_to(registry) as wire:
        registry.push(layout, "one", NAMES[0])
        machine = Machine(tmp_path, wire.address, word)
        machine.name(NAMES[0], "swe/task:never")
        assert machine.run(APPTAINER_DOCKER_USERNAME=USER, APPTAINER_DOCKER_PASSWORD="wrong").returncode == 1
        assert machine.states() == {NAMES[0]: "refused", "swe/task:never": "refused"}
        assert "APPTAINER_DOCKER_PASSWORD" in machine.report()[NAMES[0]]["reason"]
        assert machine.run().returncode == 1 and machine.states()[NAMES[0]] == "refused"
        assert machine.run(APPTAINER_DOCKER_USERNAME=USER, APPTAINER_DOCKER_PASSWORD=PASSWORD).returncode == 1
        assert machine.states() == {NAMES[0]: "fetched", "swe/task:never": "missing"}
        for login in (".docker/config.json", ".apptainer/docker-config.json"):
            machine.sif("one").unlink()
            subprocess.run(
                [
                    "skopeo",
                    "login",
                    "--tls-verify=false",
                    "--authfile",
                    str(tmp_path / "login.json"),
                    "-u",
                    USER,
                    "-p",
                    PASSWORD,
                    wire.address,
                ],
                check=True,
                capture_output=True,
            )
            (there := machine.folder / "home" / login).parent.mkdir(exist_ok=True)  # apptainer has made its own
            (tmp_path / "login.json").rename(there)
            machine.name(NAMES[0])
            assert machine.run().returncode == 0, machine.report()
            there.unlink()


def test_a_registry_without_tls_needs_the_flag(tmp_path: Path, registry: Registry, word: str):
    machine = Machine(tmp_path, registry.address, word)
    environment = os.environ | {"R2E_DATA_PATH": str(tmp_path / "rows.jsonl"), "R2E_SIF_DIR": str(machine.images)}
    ran = subprocess.run(
        [sys.executable, "-m", "setup.images", "--mirror", registry.address],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 1 and "say --no-https" in ran.stdout


def test_a_terminal_gets_one_bar(machine: Machine):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "setup.images", "--mirror", machine.address, "--no-https", "--keep-free-gb", "0.1"]
    environment = os.environ | {
        "R2E_DATA_PATH": str(machine.folder / "rows.jsonl"),
        "R2E_SIF_DIR": str(machine.images),
        "TERM": "xterm",
        "COLUMNS": "120",
    }
    process = subprocess.Popen(
        command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # how a terminal whose other side is closed ends
        pass
    os.close(ours)
    table, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"3/3" in shown and b"3 fetched" in shown and b"[images]" not in shown
    assert b"fetched         3" in table


@pytest.mark.parametrize(
    "rows, said",
    [
        ('{"instance_id": "a-1", "image_name": ""}\n', "row a-1 names no image"),
        ('{"image": "a/b:1"}\n{"image": "a__b:1"}\n', "both lie in a__b__1.sif"),
        ("not JSON\n", "cannot be read as jsonl"),
    ],
)
def test_rows_that_cannot_be_right_stop_it(machine: Machine, rows: str, said: str):
    (machine.folder / "rows.jsonl").write_text(rows)
    ran = machine.run()
    assert ran.returncode == 78 and said in ran.stderr, ran.stderr


def test_what_must_be_set_is_named(machine: Machine):
    for missing in ("R2E_DATA_PATH", "R2E_SIF_DIR"):
        ran = machine.run(**{missing: ""})
        assert ran.returncode == 78 and f"{missing} must be set" in ran.stderr
    ran = machine.run(APPTAINER_DOCKER_USERNAME="somebody")
    assert ran.returncode == 78 and "belong together" in ran.stderr
    ran = machine.run("--json", str(machine.folder / "nowhere/report.json"))
    assert ran.returncode == 78 and "make it first" in ran.stderr
