"""A cgroup v2 for each sandbox, where one can be had: the kernel holds memory, swap and tasks, and counts what it did.

Below the cgroup that the server is started in, which must be the server's to change (a container's, systemd's `Delegate=yes`):

    agent-server/                               the server, its workers, their watchdogs
    sandbox.OWNER.SESSION.ATTEMPT.XXXXXXXX/     one sandbox; OWNER stands for the work directory

The server moves aside because the kernel opens controllers only to the children of a cgroup that holds no process itself.
Invariant: where any of this is refused, nothing stays changed, and the watchdog alone keeps the limits.
"""

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)
PROC = Path("/proc/self")
LEAF = "agent-server"
CONTROLLERS = {"memory", "pids"}
GONE_WITHIN_S = 2.0
ENTER = 'echo $$ >"$0" && exec "$@"'  # before the program runs, so nothing that it forks can be outside


def settle() -> Path | None:
    """For the server, before it starts others: move into LEAF and open the controllers to its siblings. Returns where those may
    be made, or None; a cgroup that holds other processes stays as it is."""
    if (own := _own()) is None:
        return None
    room = own.parent if own.name == LEAF else own
    leaf = room / LEAF
    try:
        if not CONTROLLERS <= _words(room / "cgroup.controllers"):
            return None
        if own != leaf:
            leaf.mkdir(exist_ok=True)
            (leaf / "cgroup.procs").write_text(str(os.getpid()))
        (room / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(CONTROLLERS)))
        return room
    except OSError as refused:
        log.info("sandboxes get no cgroups of their own: %s", refused)
        if own != leaf:
            with suppress(OSError):
                (own / "cgroup.procs").write_text(str(os.getpid()))
                leaf.rmdir()
        return None


@cache
def find_room() -> Path | None:
    """Where sandboxes get cgroups, if the server has settled. One look a process."""
    own = _own()
    try:
        settled = own is not None and own.name == LEAF and CONTROLLERS <= _words(own.parent / "cgroup.subtree_control")
    except OSError:
        return None
    return own.parent if settled and os.access(own.parent, os.W_OK) else None


class Cgroup:
    """Of one sandbox."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._seen = {"memory": 0, "processes": 0}

    @classmethod
    def make(cls, scratch: Path, *, memory_bytes: int, tasks: int) -> "Cgroup | None":
        """For the sandbox of that scratch folder; `tasks` are processes and threads. None where there is no room."""
        if (room := find_room()) is None:
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


def reclaim(scratch_dir: Path, is_left: Callable[[str], bool]) -> None:
    """Remove the cgroups of sandboxes whose scratch folder there, by its name, `is_left` over."""
    prefix = _prefix(scratch_dir)
    for folder in find_room().glob(f"{prefix}*") if find_room() else ():
        if is_left(folder.name.removeprefix(prefix).rpartition(".")[0]):
            _remove(folder)


def _prefix(scratch_dir: Path) -> str:
    return f"sandbox.{hashlib.sha256(str(scratch_dir.resolve()).encode()).hexdigest()[:12]}."


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    with suppress(OSError):  # it is gone, or Linux is older than 5.14; what ends the sandbox's processes does not rest on it
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


def _own() -> Path | None:
    """The folder of this process's cgroup in the unified hierarchy, wherever that is mounted."""
    try:
        path = next(line[3:] for line in (PROC / "cgroup").read_text().splitlines() if line.startswith("0::"))
        for line in (PROC / "mountinfo").read_text().splitlines():
            mount, _, kind = line.partition(" - ")
            root, point = mount.split()[3:5]
            if kind.startswith("cgroup2 ") and Path(path).is_relative_to(root) and ".." not in Path(path).parts:
                return Path(point, Path(path).relative_to(root))
    except (OSError, StopIteration, ValueError):
        pass
    return None


def _words(file: Path) -> set[str]:
    return set(file.read_text().split())


def _numbers(file: Path) -> dict[str, int]:
    return {name: int(number) for name, number in (line.split() for line in file.read_text().splitlines())}
