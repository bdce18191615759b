"""Fake of cgroupfs: a folder of plain files in place of the kernel's.

It shares with cgroupfs the files' names and contents, that removing a folder removes its files, and that a folder
with a live process in it cannot be removed.
"""

import errno
import os
import shutil
from pathlib import Path

from agent_server.sandboxes.cgroups import delegation
from agent_server.sandboxes.cgroups.cgroup import Cgroup
from agent_server.sandboxes.cgroups.delegation import SERVER_CGROUP
from agent_server.sandboxes.processes import read_process
from tests.agent_server.sandboxes.exceed_limits import LIMITS

MOUNTS = (
    "22 1 0:5 / /proc rw - proc proc rw\n"
    "31 23 0:28 / {elsewhere} rw - cgroup cgroup rw,memory\n"
    "41 31 0:38 {root} {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
)


class FakeCgroupfs:
    """Hierarchy with one service.

    `unified`: its root. `service`: the cgroup that the server is started in. `removed`: files of removed cgroups.
    """

    def __init__(self, folder: Path, monkeypatch):
        self.proc, self.unified, self.removed = folder / "proc", folder / "unified", []
        self.service = self.unified / "system" / "agents"
        for path in (self.proc, self.service):
            path.mkdir(parents=True)
        (self.service / "cgroup.procs").write_text(str(os.getpid()))
        (self.service / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        (self.service / "cgroup.subtree_control").write_text("\n")
        self.mount("/")
        self.enter("/system/agents")
        monkeypatch.setattr(delegation, "PROC_SELF", self.proc)
        monkeypatch.setattr(Path, "rmdir", lambda folder: self._rmdir(folder))

    def mount(self, root: str) -> None:
        """Mount the part of the hierarchy below `root`."""
        (self.proc / "mountinfo").write_text(
            MOUNTS.format(root=root, mount=self.unified, elsewhere=self.unified.parent)
        )

    def enter(self, path: str) -> None:
        """Put this process into a cgroup."""
        (self.proc / "cgroup").write_text(f"4:memory:/elsewhere\n0::{path}\n")
        delegation.find_delegated_cgroup.cache_clear()

    def set_up(self) -> None:
        """Delegate the service's cgroup to a server, and be a process that this server started."""
        delegation.set_up_delegation()
        (self.service / "cgroup.subtree_control").write_text("memory pids\n")
        self.enter(f"/system/agents/{SERVER_CGROUP}")

    def tree(self) -> dict[str, str]:
        """Contents of all files by path; folders are empty."""
        return {
            str(path.relative_to(self.unified)): path.read_text() if path.is_file() else ""
            for path in self.unified.rglob("*")
        }

    def _rmdir(self, folder: Path) -> None:
        if not folder.is_relative_to(self.unified) or not folder.exists():
            return os.rmdir(folder)
        processes = folder / "cgroup.procs"
        if (
            any(is_alive(int(pid)) for pid in (processes.read_text().split() if processes.exists() else []))
            and folder.name != SERVER_CGROUP
        ):
            raise OSError(errno.EBUSY, "Device or resource busy", str(folder))
        self.removed.append({file.name: file.read_text() for file in folder.iterdir()})
        shutil.rmtree(folder)


def is_alive(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.is_alive


def set_counters(folder: Path, file: str, text: str) -> None:
    """Replace a file of counters at once: a reader of cgroupfs never sees a part."""
    (folder / f"{file}.new").write_text(text)
    (folder / f"{file}.new").rename(folder / file)


def create(scratch: Path) -> Cgroup | None:
    """Cgroup of a sandbox with that scratch folder."""
    return Cgroup.create(scratch, memory_bytes=LIMITS.memory_bytes, tasks=LIMITS.tasks)
