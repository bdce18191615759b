"""An isolated environment for the set-up scripts: a PATH of chosen programs, with stubs for the others."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Programs that the scripts use, without those that tests leave out or replace.
BASICS = [
    "awk",
    "basename",
    "bash",
    "cat",
    "chmod",
    "cp",
    "cut",
    "date",
    "df",
    "dirname",
    "dpkg",
    "dpkg-deb",
    "env",
    "find",
    "flock",
    "git",
    "grep",
    "head",
    "id",
    "ldd",
    "ln",
    "ls",
    "mkdir",
    "mktemp",
    "mv",
    "printf",
    "rm",
    "sed",
    "setsid",
    "sh",
    "sha256sum",
    "sleep",
    "sort",
    "tail",
    "tar",
    "touch",
    "tr",
    "umask",
    "uname",
    "xargs",
]


class FakeMachine:
    """A folder of programs that is the whole PATH, and runs of set-up scripts with it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.programs = folder / "bin"
        self.programs.mkdir()
        self.add(*BASICS)

    def add(self, *names: str) -> None:
        for name in names:
            if program := shutil.which(name):
                (self.programs / name).symlink_to(program)

    def stub(self, name: str, script: str) -> None:
        """Replace program `name` by a shell script. Every call is recorded in `calls`."""
        path = self.programs / name
        path.unlink(missing_ok=True)
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>"{self.folder}/calls"\n{script}\n')
        path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        record = self.folder / "calls"
        return record.read_text().splitlines() if record.exists() else []

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": str(self.programs),
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "LC_ALL": "C.UTF-8",
        } | more

    def run(self, script: str | Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(ROOT / script), *arguments]
        return subprocess.run(
            command,
            env=self.environment(**environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )


@pytest.fixture
def fake_machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


@pytest.fixture(scope="session")
def demo_cache() -> Path:
    """The folder of the demo tasks and their image, as scripts/test.sh made it."""
    return Path(os.environ.get("SWE_RL_CACHE", ROOT / ".cache")) / "demo"
