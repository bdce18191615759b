"""The command `python -m setup.images` with a registry, a proxy and folders of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_server.sandboxes import apptainer
from tests.setup.conftest import ROOT
from tests.setup.images.oci import Registry, make_images, proxy_to

TAGS = ["one", "two", "three"]
NAMES = [f"swe/task:{tag}" for tag in TAGS]


@pytest.fixture(scope="session")
def layout(tmp_path_factory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"), TAGS)


@pytest.fixture(scope="session")
def registry(tmp_path_factory, layout: Path):
    with Registry(tmp_path_factory.mktemp("open") / "registry") as registry:
        for tag in TAGS:
            registry.push(layout, tag, f"swe/task:{tag}")
        yield registry


@pytest.fixture
def proxy(registry: Registry):
    with proxy_to(registry) as proxy:
        yield proxy


class Command:
    """Runs the command on generated rows, and reads the images and the report that it wrote."""

    def __init__(self, folder: Path, address: str, process_tag: str):
        self.folder, self.images, self.address, self.process_tag = folder, folder / "images", address, process_tag
        (folder / "home").mkdir()
        self.set_rows(*NAMES)

    def set_rows(self, *names: str) -> None:
        (self.folder / "rows.jsonl").write_text(
            "".join(json.dumps({"instance_id": f"task-{name}", "image_name": name}) + "\n" for name in names)
        )

    def sif(self, tag: str) -> Path:
        return self.images / f"swe__task__{tag}.sif"

    @property
    def builds(self) -> list[Path]:
        return list((self.images / ".fetching/builds").glob("*"))

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
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("APPTAINER_", "DOCKER_"))
        }
        variables = {
            "R2E_DATA_PATH": str(self.folder / "rows.jsonl"),
            "R2E_SIF_DIR": str(self.images),
            "HOME": str(self.folder / "home"),
            "PROCESS_TAG": self.process_tag,
        }
        return subprocess.Popen(
            command,
            env=inherited | variables | environment,
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
def command(tmp_path: Path, proxy, process_tag: str) -> Command:
    return Command(tmp_path, proxy.address, process_tag)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.001)


def top_layer(image: Path, tmp_path: Path) -> str:
    """Size and checksum of the file in the image's own layer, read in a sandbox."""
    shell = apptainer.start(image, scratch=tmp_path, env={}, start_timeout_s=60)
    try:
        return shell.run("busybox stat -c %s /top; busybox sha256sum /top", cwd="/", timeout_s=60).output
    finally:
        shell.close()


def top_bytes(image: Path, tmp_path: Path) -> int:
    return int(top_layer(image, tmp_path).split()[0])


def assert_nothing_half_built(command: Command) -> None:
    assert command.builds == []
    assert list((command.images / ".fetching/blobs/sha256").iterdir()) == []
