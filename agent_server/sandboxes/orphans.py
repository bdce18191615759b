"""What outlives a killed worker when no server is there to bury it: written down while it runs, ended by the next server.

A sandbox cannot carry its owner's label in its environment: Apptainer replaces that of its processes, and what it puts
there can be read inside. So the label is a file in the session's scratch folder: the folder's place names the owner (one
work directory, one server), its name the session and attempt, its content the processes. A cgroup has these in its name.
Invariant: only a process with the pid and start time that were written down in this boot is killed, with all below it.
"""

import json
import logging
import shutil
import tempfile
import time
from pathlib import Path

from agent_server.config import Settings
from agent_server.sandboxes.cgroups import cgroup
from agent_server.sandboxes.processes import Process, descendants, kill, read_process

log = logging.getLogger(__name__)
LABEL = "processes.json"
GONE_WITHIN_S = 5.0
LINK_PREFIX = "swe-rl-image-"
STALE_LINK_S = 3600.0


def record_processes(scratch: Path, pids: list[int]) -> None:
    """Note these processes as what runs for the folder's session. A disk that refuses costs the label, not the session."""
    processes = [(process.pid, process.start_ticks) for process in map(read_process, pids) if process]
    try:
        (scratch / LABEL).write_text(json.dumps({"boot": _boot(), "processes": processes}))
    except OSError as refused:
        log.error(
            "the processes of %s were not noted; if the worker is killed, they may be left over: %s",
            scratch.name,
            refused,
        )


def reclaim_orphans(settings: Settings, active: set[str]) -> list[str]:
    """End what is left of sessions that are not `active` (`SESSION.ATTEMPT`), and remove their scratch folders.

    Returns the names of those that something was left of. Nothing of another work directory is touched.
    """
    reclaimed = [folder for folder in sorted(settings.scratch_dir.iterdir()) if folder.name not in active]
    roots = [process for folder in reclaimed for process in _labelled(folder)]
    for pid in {pid for root in roots for pid in (root.pid, *(below.pid for below in descendants(root.pid)))}:
        kill(pid)
    deadline = time.monotonic() + GONE_WITHIN_S
    while any(_same(root) for root in roots) and time.monotonic() < deadline:
        time.sleep(0.01)
    cgroup.remove_cgroups(settings.scratch_dir, lambda name: name not in active)
    for folder in reclaimed:
        shutil.rmtree(folder, ignore_errors=True)
    remove_stale_links()
    return [folder.name for folder in reclaimed]


def remove_stale_links() -> None:
    """Folders of links to images that workers left which were killed within a start. Whoever made them: no start takes so long."""
    for folder in Path(tempfile.gettempdir()).glob(f"{LINK_PREFIX}*"):
        try:
            if folder.stat().st_mtime < time.time() - STALE_LINK_S:
                for entry in filter(Path.is_symlink, folder.iterdir()):
                    entry.unlink()
                folder.rmdir()
        except OSError:
            continue  # it went, or holds something else


def _labelled(folder: Path) -> list[Process]:
    """The folder's processes that still run."""
    try:
        label = json.loads((folder / LABEL).read_text())
        noted = (
            [Process(int(pid), 0, "", int(start_ticks)) for pid, start_ticks in label["processes"]]
            if label["boot"] == _boot()
            else []
        )
    except (OSError, ValueError, KeyError, TypeError):
        return []  # the worker was killed before its sandbox had started, and an idle shell ends with its worker
    return [process for process in noted if _same(process)]


def _same(noted: Process) -> bool:
    now = read_process(noted.pid)
    return now is not None and now.start_ticks == noted.start_ticks and now.state not in "ZX"


def _boot() -> str:
    """Pids and start times begin anew with every boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
