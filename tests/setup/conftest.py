"""Running the set-up scripts in a world of the test's making: a PATH of chosen programs, stubs for the others."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What the scripts use besides the tools that a test leaves out or replaces.
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


class World:
    """A folder of programs that is the whole PATH, and a way to run a script of setup/ in it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.programs = folder / "bin"
        self.programs.mkdir()
        self.add(*BASICS)

    def add(self, *names: str) -> None:
        for name in names:
            found = shutil.which(name)
            if found:
                (self.programs / name).symlink_to(found)

    def stub(self, name: str, script: str) -> None:
        """Puts a shell script in the place of program `name`; every call is noted in `calls`."""
        path = self.programs / name
        path.unlink(missing_ok=True)
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>"{self.folder}/calls"\n{script}\n')
        path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        noted = self.folder / "calls"
        return noted.read_text().splitlines() if noted.exists() else []

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
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(scope="session")
def demo_cache() -> Path:
    """Where scripts/test.sh has put the demo tasks and their image."""
    return Path(os.environ.get("SWE_RL_CACHE", ROOT / ".cache")) / "demo"
