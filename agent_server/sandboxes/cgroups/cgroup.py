"""Cgroup (v2) of one sandbox: the kernel limits its memory, swap and tasks, and counts the limits it enforced.

The name contains the owner (the work directory's hash), session and attempt, so that the next server finds the cgroups
of a killed one.
Invariant: without a delegated cgroup (delegation.py) a sandbox runs all the same, limited by its watchdog alone.
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
REMOVE_TIMEOUT_S = 2.0
ENTER_SCRIPT = 'echo $$ >"$0" && exec "$@"'


class Cgroup:
    """One sandbox's cgroup."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._last_counts = {"memory": 0, "processes": 0}

    @classmethod
    def create(cls, scratch: Path, *, memory_bytes: int, tasks: int) -> "Cgroup | None":
        """Create a cgroup for the sandbox of that scratch folder, or None where that is not possible.

        `tasks`: limit of processes and threads together.
        """
        if (parent := find_delegated_cgroup()) is None:
            return None
        try:
            prefix = f"{_owner_prefix(scratch.parent)}{scratch.name}."
            cgroup = cls(Path(tempfile.mkdtemp(prefix=prefix, dir=parent)))
        except OSError as error:
            log.warning("a sandbox runs without a cgroup: %s", error)
            return None
        try:
            (cgroup.folder / "memory.max").write_text(str(memory_bytes))
            (cgroup.folder / "pids.max").write_text(str(tasks))
            with suppress(PermissionError):  # kernels that do not count swap lack the file, and it cannot be created
                (cgroup.folder / "memory.swap.max").write_text("0")
            return cgroup
        except OSError as error:
            log.warning("a sandbox runs without a cgroup: %s", error)
            cgroup.remove()
            return None

    def wrap_command(self, argv: list[str]) -> list[str]:
        """Command that enters the cgroup and then becomes `argv`, with the same pid.

        The program starts inside, so that nothing it forks can be outside. It does not start if entering fails.
        """
        return ["/bin/sh", "-c", ENTER_SCRIPT, str(self.folder / "cgroup.procs"), *argv]

    def take_limit_event(self) -> str:
        """The limit (`memory`, `processes`) that the kernel enforced since the last call, or ""."""
        last, self._last_counts = self._last_counts, self._read_counts()
        return next((limit for limit, count in self._last_counts.items() if count > last[limit]), "")

    def remove(self) -> None:
        """Kill the processes inside and remove the cgroup; repeatable."""
        _remove(self.folder)

    def _read_counts(self) -> dict[str, int]:
        """Number of times that the kernel enforced each limit."""
        try:
            memory, tasks = _read_counters(self.folder / "memory.events"), _read_counters(self.folder / "pids.events")
        except OSError:
            return self._last_counts  # the cgroup is gone
        # `oom_kill` alone also counts kills for lack of memory on the whole machine, which is not the sandbox's limit.
        return {"memory": min(memory["oom"], memory["oom_kill"]), "processes": tasks["max"]}


def remove_cgroups(scratch_dir: Path, is_orphaned: Callable[[str], bool]) -> None:
    """Remove the cgroups of this owner's sandboxes whose scratch folder's name (`SESSION.ATTEMPT`) `is_orphaned`."""
    if (parent := find_delegated_cgroup()) is None:
        return
    prefix = _owner_prefix(scratch_dir)
    for folder in parent.glob(f"{prefix}*"):
        if is_orphaned(folder.name.removeprefix(prefix).rpartition(".")[0]):
            _remove(folder)


def _owner_prefix(scratch_dir: Path) -> str:
    return f"sandbox.{hashlib.sha256(str(scratch_dir.resolve()).encode()).hexdigest()[:12]}."


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + REMOVE_TIMEOUT_S
    # Fails where the cgroup is gone, and before Linux 5.14. The sandbox's processes are killed without it, too.
    with suppress(OSError):
        (folder / "cgroup.kill").write_text("1")
    while True:
        try:
            return folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > deadline:
                return log.error("the cgroup %s cannot be removed: %s", folder, error)
            time.sleep(0.002)


def _read_counters(file: Path) -> dict[str, int]:
    return {name: int(count) for name, count in (line.split() for line in file.read_text().splitlines())}
