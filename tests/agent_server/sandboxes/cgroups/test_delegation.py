"""Set-up and discovery of the delegated cgroup."""

import os
import shutil
from pathlib import Path

import pytest

from agent_server.sandboxes.cgroups import cgroup
from agent_server.sandboxes.cgroups.delegation import SERVER_CGROUP, find_delegated_cgroup, set_up_delegation
from tests.agent_server.sandboxes.cgroups.fake_cgroupfs import MOUNTS, create


def test_the_server_moves_to_a_child_and_enables_the_controllers(cgroupfs):
    assert find_delegated_cgroup() is None
    assert set_up_delegation() == cgroupfs.service
    assert (cgroupfs.service / SERVER_CGROUP / "cgroup.procs").read_text() == str(os.getpid())
    assert (cgroupfs.service / "cgroup.subtree_control").read_text() == "+memory +pids"


@pytest.mark.parametrize(("root", "ours"), [("/", "/system/agents"), ("/docker/x", "/docker/x/system/agents")])
def test_a_worker_finds_the_delegated_cgroup_above_its_own(cgroupfs, root, ours):
    cgroupfs.mount(root)
    cgroupfs.enter(f"{ours}/{SERVER_CGROUP}")
    (cgroupfs.service / "cgroup.subtree_control").write_text("cpu memory pids\n")
    assert find_delegated_cgroup() == cgroupfs.service
    before = cgroupfs.tree()
    assert set_up_delegation() == cgroupfs.service  # a server started in the child
    assert cgroupfs.tree() == before | {"system/agents/cgroup.subtree_control": "+memory +pids"}


def no_hierarchy(cgroupfs):
    (cgroupfs.proc / "cgroup").write_text("4:memory:/elsewhere\n")


def not_mounted(cgroupfs):
    (cgroupfs.proc / "mountinfo").write_text(MOUNTS.splitlines()[0])


def outside_of_the_mount(cgroupfs):
    cgroupfs.mount("/another/container")


def above_our_namespace(cgroupfs):
    cgroupfs.enter("/../neighbour")


def no_folder(cgroupfs):
    shutil.rmtree(cgroupfs.service)


def no_pids_controller(cgroupfs):
    (cgroupfs.service / "cgroup.controllers").write_text("cpu memory hugetlb\n")


def controllers_refused(cgroupfs):
    """As where the cgroup contains other processes."""
    (cgroupfs.service / "cgroup.subtree_control").unlink()
    (cgroupfs.service / "cgroup.subtree_control").mkdir()


@pytest.mark.parametrize(
    "reason",
    [
        no_hierarchy,
        not_mounted,
        outside_of_the_mount,
        above_our_namespace,
        no_folder,
        no_pids_controller,
        controllers_refused,
    ],
)
def test_without_cgroups_nothing_changes(cgroupfs, reason, tmp_path):
    reason(cgroupfs)
    before = cgroupfs.tree()
    assert set_up_delegation() is None
    assert find_delegated_cgroup() is None
    assert create(tmp_path / "scratch" / "s.1") is None
    cgroup.remove_cgroups(tmp_path / "scratch", lambda name: True)
    assert cgroupfs.tree() == before


def test_the_server_moves_back_when_it_is_refused(cgroupfs):
    (cgroupfs.service / "cgroup.procs").write_text("")
    controllers_refused(cgroupfs)
    assert set_up_delegation() is None
    assert (cgroupfs.service / "cgroup.procs").read_text() == str(os.getpid())
    assert [files["cgroup.procs"] for files in cgroupfs.removed] == [str(os.getpid())]  # the child


@pytest.mark.parametrize("control", ["", "memory", "cpu pids"])
def test_a_cgroup_without_both_controllers_is_not_used(cgroupfs, control):
    cgroupfs.enter(f"/system/agents/{SERVER_CGROUP}")
    (cgroupfs.service / "cgroup.subtree_control").write_text(control)
    assert find_delegated_cgroup() is None


@pytest.fixture
def another_user():
    """A user without write access. Root could write any plain file."""
    before = os.getresuid()
    if before[1] == 0:
        os.setresuid(65534, 65534, 0)
    yield
    os.setresuid(*before)


def test_a_read_only_hierarchy_does_not_change(cgroupfs, another_user):
    before = cgroupfs.tree()
    assert set_up_delegation() is None
    assert cgroupfs.tree() == before and f"system/agents/{SERVER_CGROUP}" not in before


def test_a_read_only_delegated_cgroup_is_not_used(delegated, another_user):
    assert Path(delegated.service, "cgroup.subtree_control").read_text() == "memory pids\n"
    assert find_delegated_cgroup() is None
