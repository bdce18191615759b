"""Fixtures of the cgroup tests."""

import tempfile
from pathlib import Path

import pytest

from agent_server.sandboxes.cgroups import delegation
from tests.agent_server.sandboxes.cgroups.fake_cgroupfs import FakeCgroupfs, create, set_counters


@pytest.fixture
def cgroupfs(monkeypatch):
    """A hierarchy as a server finds it at its start."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # unlike tmp_path, another user can read it
        yield FakeCgroupfs(Path(folder), monkeypatch)
        monkeypatch.undo()
    delegation.find_delegated_cgroup.cache_clear()


@pytest.fixture
def delegated(cgroupfs):
    """The hierarchy after a server has set it up."""
    cgroupfs.set_up()
    return cgroupfs


@pytest.fixture
def group(delegated, tmp_path):
    """A sandbox's cgroup without events."""
    group = create(tmp_path / "scratch" / "s.1")
    set_counters(group.folder, "memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n")
    set_counters(group.folder, "pids.events", "max 0\n")
    return group
