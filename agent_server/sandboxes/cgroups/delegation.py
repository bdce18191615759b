"""Where sandboxes may have cgroups of their own (v2, memory and pids): below the cgroup that the server is started in, which must
be the server's to change: a container's, or one that systemd was told to `Delegate`.

    agent-server/                               the server, its workers, their watchdogs
    sandbox.OWNER.SESSION.ATTEMPT.XXXXXXXX/     one sandbox (cgroup.py)

The server moves aside because the kernel opens controllers only to the children of a cgroup that holds no process itself.
Invariant: where any of this is refused, nothing stays changed.
"""

import logging
import os
from contextlib import suppress
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)
PROC = Path("/proc/self")
LEAF = "agent-server"
CONTROLLERS = {"memory", "pids"}


def set_up_delegation() -> Path | None:
    """For the server, before it starts others: move into LEAF and open the controllers to its siblings. Returns where those may
    be made, or None; a cgroup that holds other processes stays as it is."""
    if (own := _own()) is None:
        return None
    room = own.parent if own.name == LEAF else own
    leaf = room / LEAF
    try:
        if not _words(room / "cgroup.controllers") >= CONTROLLERS:
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
def find_delegated_cgroup() -> Path | None:
    """Where sandboxes get cgroups, if the server has settled. One look a process."""
    own = _own()
    try:
        settled = own is not None and own.name == LEAF and _words(own.parent / "cgroup.subtree_control") >= CONTROLLERS
    except OSError:
        return None
    return own.parent if settled and os.access(own.parent, os.W_OK) else None


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
