"""Runs of setup/check.sh on a sound node, and the table that it prints."""

import os
import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.setup.conftest import ROOT, FakeMachine

IMAGE = "demo__quickstart__1.sif"
LINE = re.compile(r"(ok|warn|FAIL) +(\w+) +(.*)")
BASH_LINES = [
    "system",
    "kernel",
    "namespaces",
    "apptainer",
    "squashfs",
    "work_dir",
    "image_dir",
    "tmp",
    "shm",
    "files",
    "proxies",
    "venv",
]
PYTHON_LINES = ["settings", "memory", "processes", "agent", "rows", "images", "sandbox", "loops", "port", "clock"]
# Programs that check.sh uses besides the BASICS of a FakeMachine.
PROGRAMS = ["apptainer", "stat", "timeout", "true", "unshare"]


class Table:
    """The output of a run, by the names of its lines."""

    def __init__(self, ran: subprocess.CompletedProcess[str]):
        self.output, self.code = ran.stdout + ran.stderr, ran.returncode
        matches = [LINE.fullmatch(line) for line in ran.stdout.splitlines()]
        assert all(matches) and not ran.stderr, self.output
        self.names = [match[2] for match in matches]
        self.status = {match[2]: match[1] for match in matches}
        self.text = {match[2]: match[3] for match in matches}
        without_remedy = [
            name for name in self.names if self.status[name] != "ok" and "   remedy: " not in self.text[name]
        ]
        assert not without_remedy, self.output

    @property
    def failed(self) -> list[str]:
        return [name for name in self.names if self.status[name] == "FAIL"]


@pytest.fixture
def environment(tmp_path: Path, demo_cache: Path, process_tag: str, free_port: int) -> dict[str, str]:
    """A sound node on the demo rows, with separate folders for any file that the script might write."""
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    unset = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AGENT_SERVER_", "R2E_")) and "proxy" not in name.lower()
    }
    return unset | {
        "SWE_RL_CACHE": str(demo_cache.parent),
        "AGENT_SERVER_WORK_DIR": str(tmp_path / "work"),
        "AGENT_SERVER_PORT": str(free_port),
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path / "tmp"),
        "MARK": process_tag,
    }


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def check(environment: dict[str, str], leftover_processes: Callable[[], list[int]]):
    """Runs the script. Afterwards no process and no file of it may be left."""

    def check(*arguments: str, before: str = "", script: Path = ROOT / "setup/check.sh", **more: str) -> Table:
        command = ["bash", "-c", f'{before}\nexec bash "$0" "$@"', str(script), *arguments]
        return Table(
            subprocess.run(
                command, env=environment | more, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240
            )
        )

    yield check
    assert leftover_processes() == []
    assert [path for name in ("HOME", "TMPDIR") for path in Path(environment[name]).iterdir()] == []
    assert not Path(environment["AGENT_SERVER_WORK_DIR"]).exists()


def assert_only(table: Table, name: str, found: str, remedy: str) -> None:
    assert (table.code, table.failed) == (1, [name]), table.output
    actual_found, _, actual_remedy = table.text[name].partition("   remedy: ")
    assert found in actual_found and remedy in actual_remedy, table.text[name]


@pytest.fixture
def programs(fake_machine: FakeMachine) -> FakeMachine:
    fake_machine.add(*PROGRAMS)
    return fake_machine
