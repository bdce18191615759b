"""Delegated cgroup (v2, memory and pids) in which each sandbox can have a cgroup of its own.

It is the cgroup that the server is started in. The server must be allowed to change it, as in a container or in a
systemd service with `Delegate=yes`.

    agent-server/                               the server, its workers, their watchdogs
    sandbox.OWNER.SESSION.ATTEMPT.XXXXXXXX/     one sandbox (cgroup.py)

The server moves into a child, because the kernel enables controllers only below a cgroup without own processes.
Invariant: where a step is refused, everything stays as it was.
"""

import logging
import os
from contextlib import suppress
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)
PROC_SELF = Path("/proc/self")
SERVER_CGROUP = "agent-server"
CONTROLLERS = {"memory", "pids"}


def set_up_delegation() -> Path | None:
    """Move this process into SERVER_CGROUP and enable the controllers for its siblings.

    For the server, before it starts other processes. Returns the folder for the sandboxes' cgroups, or None where the
    kernel refuses, for example because the cgroup contains other processes.
    """
    if (own := _own_cgroup()) is None:
        return None
    parent = own.parent if own.name == SERVER_CGROUP else own
    server = parent / SERVER_CGROUP
    try:
        if not _read_set(parent / "cgroup.controllers") >= CONTROLLERS:
            return None
        if own != server:
            server.mkdir(exist_ok=True)
            (server / "cgroup.procs").write_text(str(os.getpid()))
        (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(CONTROLLERS)))
        return parent
    except OSError as error:
        log.info("sandboxes get no cgroups of their own: %s", error)
        if own != server:
            with suppress(OSError):
                (own / "cgroup.procs").write_text(str(os.getpid()))
                server.rmdir()
        return None


@cache
def find_delegated_cgroup() -> Path | None:
    """Folder for the sandboxes' cgroups, or None where the server did not set it up. Cached in each process."""
    own = _own_cgroup()
    if own is None or own.name != SERVER_CGROUP:
        return None
    try:
        enabled = _read_set(own.parent / "cgroup.subtree_control") >= CONTROLLERS
    except OSError:
        return None
    return own.parent if enabled and os.access(own.parent, os.W_OK) else None


def _own_cgroup() -> Path | None:
    """Folder of this process's cgroup in the unified hierarchy, wherever that is mounted."""
    try:
        path = next(line[3:] for line in (PROC_SELF / "cgroup").read_text().splitlines() if line.startswith("0::"))
        for line in (PROC_SELF / "mountinfo").read_text().splitlines():
            mount, _, kind = line.partition(" - ")
            root, mount_point = mount.split()[3:5]
            if kind.startswith("cgroup2 ") and Path(path).is_relative_to(root) and ".." not in Path(path).parts:
                return Path(mount_point, Path(path).relative_to(root))
    except (OSError, StopIteration, ValueError):
        pass
    return None


def _read_set(file: Path) -> set[str]:
    return set(file.read_text().split())
