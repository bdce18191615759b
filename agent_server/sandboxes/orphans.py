"""Kills sandboxes that outlived their worker and the server, from records that were written while they ran.

The record is a file in the session's scratch folder. The folder's path identifies the owner (each server has its own
work directory), its name is SESSION.ATTEMPT, and the file lists the processes. (A variable in the sandbox's environment
would not do: Apptainer replaces the environment of its processes, and the sandbox could read it.) A cgroup's name
contains the same.
Invariant: only processes with a recorded pid and start time of this boot are killed, with everything below them.
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
RECORD_FILE = "processes.json"
KILL_TIMEOUT_S = 5.0
LINK_PREFIX = "swe-rl-image-"
STALE_LINK_S = 3600.0


def record_processes(scratch: Path, pids: list[int]) -> None:
    """Record the processes of the folder's session. A disk error is logged, since it must not cost the session."""
    processes = [(process.pid, process.start_ticks) for process in map(read_process, pids) if process]
    try:
        (scratch / RECORD_FILE).write_text(json.dumps({"boot": _boot_id(), "processes": processes}))
    except OSError as error:
        log.error("the processes of %s were not recorded; if its worker is killed, they stay: %s", scratch.name, error)


def reclaim_orphans(settings: Settings, active: set[str]) -> list[str]:
    """Kill what is left of sessions that are not `active` (`SESSION.ATTEMPT`), and remove their scratch folders.

    Returns the names of the removed folders. Nothing of another work directory is touched.
    """
    folders = [folder for folder in sorted(settings.scratch_dir.iterdir()) if folder.name not in active]
    roots = [process for folder in folders for process in _recorded_processes(folder)]
    for pid in {pid for root in roots for pid in (root.pid, *(below.pid for below in descendants(root.pid)))}:
        kill(pid)
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while any(_is_running(root) for root in roots) and time.monotonic() < deadline:
        time.sleep(0.01)
    cgroup.remove_cgroups(settings.scratch_dir, lambda name: name not in active)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    remove_stale_links()
    return [folder.name for folder in folders]


def remove_stale_links() -> None:
    """Remove folders of image links that killed starts left, of any server: no start takes STALE_LINK_S."""
    for folder in Path(tempfile.gettempdir()).glob(f"{LINK_PREFIX}*"):
        try:
            if folder.stat().st_mtime < time.time() - STALE_LINK_S:
                for entry in filter(Path.is_symlink, folder.iterdir()):
                    entry.unlink()
                folder.rmdir()
        except OSError:
            continue  # it was removed meanwhile, or contains other files


def _recorded_processes(folder: Path) -> list[Process]:
    """Recorded processes of the folder's session that still run."""
    try:
        record = json.loads((folder / RECORD_FILE).read_text())
        if record["boot"] != _boot_id():
            return []
        processes = [Process(int(pid), 0, "", int(start_ticks)) for pid, start_ticks in record["processes"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # the worker was killed before its sandbox had started; an idle shell ends with its worker
    return [process for process in processes if _is_running(process)]


def _is_running(recorded: Process) -> bool:
    process = read_process(recorded.pid)
    return process is not None and process.start_ticks == recorded.start_ticks and process.is_alive


def _boot_id() -> str:
    """Identifier of this boot. Pids and start times of another boot mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
