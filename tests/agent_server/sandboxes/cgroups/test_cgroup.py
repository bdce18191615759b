"""The cgroup of one sandbox: limits, counted events, removal."""

import errno
import os
import subprocess
import threading
from pathlib import Path

import pytest

from agent_server.config import Settings
from agent_server.sandboxes.cgroups import cgroup
from agent_server.sandboxes.cgroups.delegation import SERVER_CGROUP
from agent_server.sandboxes.limits import THREADS_PER_PROCESS
from agent_server.sandboxes.orphans import reclaim_orphans
from tests.agent_server.conftest import eventually
from tests.agent_server.sandboxes.cgroups.fake_cgroupfs import create, set_counters
from tests.agent_server.sandboxes.exceed_limits import MIB


def test_limits_are_written(group):
    written = {name: (group.folder / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max")}
    assert written == {"memory.max": str(200 * MIB), "memory.swap.max": "0", "pids.max": str(50 * THREADS_PER_PROCESS)}


@pytest.mark.parametrize("refused", ["memory.max", "pids.max"])
def test_a_cgroup_whose_limits_cannot_be_set_is_removed(cgroupfs, tmp_path, monkeypatch, refused):
    cgroupfs.set_up()
    write = Path.write_text

    def refuse(path, text):
        if path.name == refused:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", refuse)
    assert create(tmp_path / "s.1") is None
    assert [path.name for path in cgroupfs.service.iterdir() if path.is_dir()] == [SERVER_CGROUP]


def test_a_kernel_without_swap_accounting_is_accepted(cgroupfs, tmp_path, monkeypatch):
    cgroupfs.set_up()
    write = Path.write_text

    def refuse(path, text):
        if path.name == "memory.swap.max":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", refuse)
    assert (create(tmp_path / "s.1").folder / "memory.max").exists()


def test_each_limit_event_is_reported_once(group):
    assert group.take_limit_event() == ""
    set_counters(group.folder, "memory.events", "oom 2\noom_kill 1\n")
    assert (group.take_limit_event(), group.take_limit_event()) == ("memory", "")
    set_counters(group.folder, "pids.events", "max 7\n")
    assert (group.take_limit_event(), group.take_limit_event()) == ("processes", "")
    set_counters(group.folder, "memory.events", "oom 3\noom_kill 2\n")
    assert (group.take_limit_event(), group.take_limit_event()) == ("memory", "")


def test_a_kill_for_lack_of_memory_on_the_machine_is_no_limit_event(group):
    set_counters(group.folder, "memory.events", "oom 0\noom_kill 1\n")
    assert group.take_limit_event() == ""


def test_a_removed_cgroup_reports_no_event(group):
    group.remove()
    assert group.take_limit_event() == ""
    group.remove()


def test_removal_kills_the_processes_inside_and_waits_for_them(cgroupfs, group):
    with subprocess.Popen(group.wrap_command(["sleep", "60"])) as inside:
        eventually(lambda: (group.folder / "cgroup.procs").exists(), what="the process has entered")
        assert (group.folder / "cgroup.procs").read_text() == f"{inside.pid}\n"
        removing = threading.Thread(target=group.remove)
        removing.start()
        eventually(lambda: (group.folder / "cgroup.kill").exists(), what="the kernel is asked to kill")
        assert group.folder.exists() and removing.is_alive()
        inside.kill()
        inside.wait()
        removing.join()
    assert not group.folder.exists() and cgroupfs.removed[-1]["cgroup.kill"] == "1"


def test_a_cgroup_that_cannot_be_removed_is_logged(group, monkeypatch, caplog):
    monkeypatch.setattr(cgroup, "REMOVE_TIMEOUT_S", 0.05)
    (group.folder / "cgroup.procs").write_text(str(os.getpid()))
    group.remove()
    assert group.folder.exists() and "cannot be removed" in caplog.text
    (group.folder / "cgroup.procs").unlink()


def test_only_cgroups_of_this_servers_dead_sessions_are_removed(cgroupfs, tmp_path):
    cgroupfs.set_up()
    ours, theirs = (
        Settings(data_path=tmp_path, sif_dir=tmp_path, work_dir=tmp_path / name) for name in ("ours", "theirs")
    )
    ours.scratch_dir.mkdir(parents=True)
    left, active, another = (
        create(ours.scratch_dir / "left.1"),
        create(ours.scratch_dir / "active.2"),
        create(theirs.scratch_dir / "left.1"),
    )
    reclaim_orphans(ours, {"active.2"})
    assert [group.folder.exists() for group in (left, active, another)] == [False, True, True]
    assert (cgroupfs.service / SERVER_CGROUP).exists()
