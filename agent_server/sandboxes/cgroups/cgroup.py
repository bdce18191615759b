"""A cgroup v2 for each sandbox, where one can be had (delegation.py): the kernel holds memory, swap and tasks, and counts what it did.

Its name says whose it is, so that the next server finds what a killed one left: the work directory's OWNER, session, attempt.
Invariant: a sandbox that gets none runs without, and the watchdog alone keeps its limits.
"""

import hashlib
import logging
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from agent_server.sandboxes.cgroups.delegation import find_delegated_cgroup

log = logging.getLogger(__name__)
GONE_WITHIN_S = 2.0
ENTER = 'echo $$ >"$0" && exec "$@"'  # before the program runs, so nothing that it forks can be outside


class Cgroup:
    """Of one sandbox."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._seen = {"memory": 0, "processes": 0}

    @classmethod
    def make(cls, scratch: Path, *, memory_bytes: int, tasks: int) -> "Cgroup | None":
        """For the sandbox of that scratch folder; `tasks` are processes and threads. None where there is no room."""
        if (room := find_delegated_cgroup()) is None:
            return None
        try:
            made = cls(Path(tempfile.mkdtemp(prefix=f"{_prefix(scratch.parent)}{scratch.name}.", dir=room)))
        except OSError as refused:
            log.warning("a sandbox runs without a cgroup: %s", refused)
            return None
        try:
            (made.folder / "memory.max").write_text(str(memory_bytes))
            (made.folder / "pids.max").write_text(str(tasks))
            with suppress(PermissionError):  # a kernel that does not count swap has no such file, and none can be made
                (made.folder / "memory.swap.max").write_text("0")
            return made
        except OSError as refused:
            log.warning("a sandbox runs without a cgroup: %s", refused)
            made.remove()
            return None

    def entering(self, argv: list[str]) -> list[str]:
        """The same program, under the same pid, in this cgroup from its start. It does not run where it cannot be."""
        return ["/bin/sh", "-c", ENTER, str(self.folder / "cgroup.procs"), *argv]

    def exceeded(self) -> str:
        """The limit that the kernel enforced since the last call, or ""."""
        seen, self._seen = self._seen, self._count()
        return next((limit for limit, times in self._seen.items() if times > seen[limit]), "")

    def remove(self) -> None:
        """End what is in it and let go of it; repeatable."""
        _remove(self.folder)

    def _count(self) -> dict[str, int]:
        try:
            memory, tasks = _numbers(self.folder / "memory.events"), _numbers(self.folder / "pids.events")
        except OSError:
            return self._seen  # it is gone
        # `oom_kill` alone also counts those killed because the whole machine was out of memory, which is no limit of ours.
        return {"memory": min(memory["oom"], memory["oom_kill"]), "processes": tasks["max"]}


def remove_cgroups(scratch_dir: Path, is_left: Callable[[str], bool]) -> None:
    """Remove the cgroups of sandboxes whose scratch folder there, by its name, `is_left` over."""
    prefix = _prefix(scratch_dir)
    for folder in find_delegated_cgroup().glob(f"{prefix}*") if find_delegated_cgroup() else ():
        if is_left(folder.name.removeprefix(prefix).rpartition(".")[0]):
            _remove(folder)


def _prefix(scratch_dir: Path) -> str:
    return f"sandbox.{hashlib.sha256(str(scratch_dir.resolve()).encode()).hexdigest()[:12]}."


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    with suppress(
        OSError
    ):  # it is gone, or Linux is older than 5.14; what ends the sandbox's processes does not rest on it
        (folder / "cgroup.kill").write_text("1")
    while True:
        try:
            return folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as refused:
            if time.monotonic() > deadline:
                return log.error("the cgroup %s cannot be removed: %s", folder, refused)
            time.sleep(0.002)


def _numbers(file: Path) -> dict[str, int]:
    return {name: int(number) for name, number in (line.split() for line in file.read_text().splitlines())}
