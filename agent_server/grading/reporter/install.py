"""Installs the reporter in every Python environment of a grading sandbox, for one run, and collects what it wrote.

Invariant: names are new in every run, so no file can lie there before. After the run nothing of it is left.
"""

import secrets
from collections.abc import Collection
from pathlib import Path

from agent_server.grading.datasets.base import SETUP_TIMEOUT_S, run_checked
from agent_server.grading.sandbox_files import read_text
from agent_server.sandboxes import ownership
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task
from client.errors import GraderError

INSIDE = Path(__file__).parent / "inside"
PARTS = ("pytest_runner", "pytest_marks", "unittest_runner", "sympy_runner")
# The folders whose .pth files a Python reads at its start. `pkgs` is conda's store of unpacked packages.
FIND = r"""find / -xdev -maxdepth 9 \( -path /proc -o -path /sys -o -path /dev -o -path /usr/share \
-o -path /usr/include -o -path /usr/src -o -name pkgs -o -name .git -o -name node_modules -o -name __pycache__ \) \
-prune -o -type d \( -path '*/python3*/site-packages' -o -path '*/python3*/dist-packages' \
-o -path '*/pypy3*/site-packages' \) -print0 -prune 2>/dev/null"""


class Reporter:
    """The reporter of one run in a grading sandbox. `canary`: keys of the tests that a canary run repeats; None for an
    ordinary run. `secret`: of the checksums of its lines."""

    def __init__(self, task: Task, sandbox: Sandbox, canary: Collection[str] | None = None):
        self._task, self._sandbox, self._canary = task, sandbox, canary
        self._name = f"r{secrets.token_hex(8)}"
        self._folder = f"/tmp/.{secrets.token_hex(8)}"
        self._environments = f"{self._folder}.environments"
        self.secret = secrets.token_hex(16)

    def install(self) -> None:
        """Raises GraderError where an environment of the image cannot be written."""
        source = f"{self._folder}.source"
        folders = f"mkdir -p {source}/{self._name} && mkdir -m 1777 {self._folder}"
        self._run(f"{folders} && {{ {FIND} >{self._environments}; true; }}")
        start = (INSIDE / "start.py").read_text() + f'\n\nstart("{self._folder}", "{self.secret}")\n'
        files = {f"{self._name}/__init__.py": start, f"{self._name}.pth": f"import {self._name}\n"}
        files |= {f"{self._name}/{part}.py": (INSIDE / f"{part}.py").read_text() for part in PARTS}
        for path, content in files.items():
            self._sandbox.write_file(f"{source}/{path}", content)
        if self._canary is not None:
            self._sandbox.write_file(f"{self._folder}/canary", "".join(f"{key}\n" for key in self._canary))
        self._open_environments()
        copy = f'cp -r {source}/{self._name} {source}/{self._name}.pth "$folder/" || exit 1'
        self._run(f"while IFS= read -rd '' folder; do {copy}; done <{self._environments} && rm -rf {source}")

    def _open_environments(self) -> None:
        """Make environments of other users writable."""
        listing = "while IFS= read -rd '' folder; do [ -w \"$folder\" ] || printf '%s\\0' \"$folder\"; done"
        locked = run_checked(self._sandbox, self._task, f"{listing} <{self._environments}", cwd="/")
        if not locked:
            return
        try:
            ownership.repair_folders(self._sandbox, locked.rstrip("\0").split("\0"))
        except PermissionError as refused:
            raise GraderError(
                f"row {self._task.task_id}: the folders of its image's Python environments must be writable: {refused};"
                " run the server as root, or build the image with files of the server's user"
            ) from refused

    def collect(self) -> str:
        """All lines that the reporter wrote, one process after the other; "" where nothing can be read. Raises
        SandboxDied, SandboxLimitExceeded."""
        lines = f"{self._folder}.lines"
        command = f"cat {self._folder}/[0-9]* >{lines} 2>/dev/null"
        self._sandbox.run_clean(command, cwd="/", timeout_s=SETUP_TIMEOUT_S)
        return read_text(self._sandbox, lines)

    def remove(self) -> None:
        """Remove everything that `install` made. What the tests did to it raises nothing. Raises SandboxDied,
        SandboxLimitExceeded."""
        remove = f'rm -rf "$folder/{self._name}" "$folder/{self._name}.pth"'
        command = f"while IFS= read -rd '' folder; do {remove}; done <{self._environments}; rm -rf {self._folder}*"
        self._sandbox.run_clean(command, cwd="/", timeout_s=SETUP_TIMEOUT_S)

    def _run(self, command: str) -> None:
        run_checked(self._sandbox, self._task, command, cwd="/")
