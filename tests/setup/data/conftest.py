"""The command `python -m setup.data`, with a hub on loopback and folders of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.setup.conftest import ROOT
from tests.setup.data.hub_server import Hub, serving


class Command:
    """Runs the command and reads what it wrote: `folder` has the rows, `cache` the hub's files."""

    def __init__(self, hub: Hub, url: str, folder: Path, process_tag: str):
        self.hub, self.cache, self.folder = hub, folder / "hf", folder / "rows"
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("HF_") and not name.lower().endswith("_proxy")
        }
        self.environment = inherited | {"HF_ENDPOINT": url, "HF_HOME": str(self.cache), "PROCESS_TAG": process_tag}

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "setup.data", *arguments]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, code: int = 0, **environment: str) -> str:
        """Return the command's stderr. Its exit code must be `code`."""
        process = self.start(*arguments, **environment)
        stderr = process.communicate(timeout=120)[1]
        assert process.returncode == code, stderr
        return stderr

    def fetch(
        self, mode: str = "train", dataset: str = "r2e-gym-subset", *arguments: str, code: int = 0, **environment: str
    ) -> str:
        return self.run("fetch", str(self.folder), mode, dataset, *arguments, code=code, **environment)

    def ids(self, mode: str = "train") -> list[str]:
        return pq.read_table(self.folder / f"{mode}.parquet")["instance_id"].to_pylist()

    def manifest(self, mode: str = "train") -> dict:
        return json.loads((self.folder / "manifest.json").read_text())["modes"][mode]

    def visible_files(self) -> set[str]:
        """Names in the folder that a reader takes for complete files."""
        if not self.folder.exists():
            return set()
        return {path.name for path in self.folder.iterdir() if not path.name.startswith(".")}

    def partial_blobs(self) -> list[Path]:
        """Partial downloads of large files. The library's own have longer names."""
        return [path for path in self.cache.glob("hub/datasets--*/blobs/*.incomplete") if len(path.stem) == 64]

    def sent_bytes(self) -> int:
        return sum(request.sent for request in self.hub.requests_to("/cdn/"))


@pytest.fixture
def command(tmp_path: Path, process_tag: str, leftover_processes):
    hub = Hub()
    with serving(hub) as url:
        yield Command(hub, url, tmp_path, process_tag)
    assert not leftover_processes()
