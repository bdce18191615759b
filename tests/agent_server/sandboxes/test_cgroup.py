"""Cgroups of sandboxes, against a folder of plain files in place of the kernel's.

What the fake has in common with cgroupfs: the files' names and contents, that a folder's files go with it, and that a folder
with a live process in it does not go.
"""

import errno
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from agent_server.config import Settings
from agent_server.sandboxes import apptainer
from agent_server.sandboxes.cgroups import cgroup, delegation
from agent_server.sandboxes.cgroups.cgroup import Cgroup
from agent_server.sandboxes.cgroups.delegation import SERVER_CGROUP
from agent_server.sandboxes.limits import THREADS_PER_PROCESS, Limits
from agent_server.sandboxes.orphans import reclaim_orphans
from agent_server.sandboxes.processes import descendants, read_process
from agent_server.sandboxes.shell import PersistentShell
from client.errors import SandboxLimitExceeded, SandboxStartFailed
from tests.agent_server.conftest import eventually

MIB = 2**20
LIMITS = Limits(memory_bytes=200 * MIB, processes=50, disk_bytes=60 * MIB, cpu_s=1000.0)
MOUNTS = "22 1 0:5 / /proc rw - proc proc rw\n31 23 0:28 / {elsewhere} rw - cgroup cgroup rw,memory\n41 31 0:38 {root} {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"


class Kernel:
    """`unified`: the hierarchy; `service`: the folder in it of the cgroup that a server is started in."""

    def __init__(self, folder: Path, monkeypatch):
        self.proc, self.unified, self.removed = folder / "proc", folder / "unified", []
        self.service = self.unified / "system" / "agents"
        for path in (self.proc, self.service):
            path.mkdir(parents=True)
        (self.service / "cgroup.procs").write_text(str(os.getpid()))
        (self.service / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        (self.service / "cgroup.subtree_control").write_text("\n")
        self.mount("/")
        self.put_us("/system/agents")
        monkeypatch.setattr(delegation, "PROC_SELF", self.proc)
        monkeypatch.setattr(Path, "rmdir", lambda folder: self._rmdir(folder))

    def mount(self, root: str) -> None:
        (self.proc / "mountinfo").write_text(
            MOUNTS.format(root=root, mount=self.unified, elsewhere=self.unified.parent)
        )

    def put_us(self, path: str) -> None:
        (self.proc / "cgroup").write_text(f"4:memory:/elsewhere\n0::{path}\n")
        delegation.find_delegated_cgroup.cache_clear()

    def settled(self) -> None:
        delegation.set_up_delegation()
        (self.service / "cgroup.subtree_control").write_text("memory pids\n")
        self.put_us(f"/system/agents/{SERVER_CGROUP}")

    def tree(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.unified)): path.read_text() if path.is_file() else ""
            for path in self.unified.rglob("*")
        }

    def _rmdir(self, folder: Path) -> None:
        if not folder.is_relative_to(self.unified) or not folder.exists():
            return os.rmdir(folder)
        processes = folder / "cgroup.procs"
        if (
            any(_lives(int(pid)) for pid in (processes.read_text().split() if processes.exists() else []))
            and folder.name != SERVER_CGROUP
        ):
            raise OSError(errno.EBUSY, "Device or resource busy", str(folder))
        self.removed.append({file.name: file.read_text() for file in folder.iterdir()})
        shutil.rmtree(folder)


def _lives(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.state not in "ZX"


def enforce(folder: Path, file: str, text: str) -> None:
    """What the kernel counts is never seen half written."""
    (folder / f"{file}.new").write_text(text)
    (folder / f"{file}.new").rename(folder / file)


def make(scratch: Path) -> Cgroup | None:
    return Cgroup.create(scratch, memory_bytes=LIMITS.memory_bytes, tasks=LIMITS.tasks)


@pytest.fixture
def kernel(monkeypatch):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # unlike tmp_path it can be read by another user
        yield Kernel(Path(folder), monkeypatch)
        monkeypatch.undo()
    delegation.find_delegated_cgroup.cache_clear()


@pytest.fixture
def settled_kernel(kernel):
    kernel.settled()
    return kernel


@pytest.fixture
def made(kernel, tmp_path):
    """A sandbox's cgroup that nothing has happened to."""
    kernel.settled()
    made = make(tmp_path / "scratch" / "s.1")
    enforce(made.folder, "memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n")
    enforce(made.folder, "pids.events", "max 0\n")
    return made


# --- where sandboxes may get cgroups ------------------------------------------------------------------------------------


def test_the_server_moves_aside_and_opens_the_controllers(kernel):
    assert delegation.find_delegated_cgroup() is None
    assert delegation.set_up_delegation() == kernel.service
    assert (kernel.service / SERVER_CGROUP / "cgroup.procs").read_text() == str(os.getpid())
    assert (kernel.service / "cgroup.subtree_control").read_text() == "+memory +pids"


@pytest.mark.parametrize(("root", "ours"), [("/", "/system/agents"), ("/docker/x", "/docker/x/system/agents")])
def test_a_started_process_finds_the_room_beside_its_leaf(kernel, root, ours):
    kernel.mount(root)
    kernel.put_us(f"{ours}/{SERVER_CGROUP}")
    (kernel.service / "cgroup.subtree_control").write_text("cpu memory pids\n")
    assert delegation.find_delegated_cgroup() == kernel.service
    before = kernel.tree()
    assert delegation.set_up_delegation() == kernel.service  # a server that was started in the leaf
    assert kernel.tree() == before | {"system/agents/cgroup.subtree_control": "+memory +pids"}


def no_hierarchy(kernel):
    (kernel.proc / "cgroup").write_text("4:memory:/elsewhere\n")


def not_mounted(kernel):
    (kernel.proc / "mountinfo").write_text(MOUNTS.splitlines()[0])


def outside_of_the_mount(kernel):
    kernel.mount("/another/container")


def above_our_namespace(kernel):
    kernel.put_us("/../neighbour")


def no_folder(kernel):
    shutil.rmtree(kernel.service)


def no_pids_controller(kernel):
    (kernel.service / "cgroup.controllers").write_text("cpu memory hugetlb\n")


def controllers_refused(kernel):
    """As by other processes in the cgroup."""
    (kernel.service / "cgroup.subtree_control").unlink()
    (kernel.service / "cgroup.subtree_control").mkdir()


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
def test_without_cgroups_nothing_changes(kernel, reason, tmp_path):
    reason(kernel)
    before = kernel.tree()
    assert delegation.set_up_delegation() is None
    assert delegation.find_delegated_cgroup() is None
    assert make(tmp_path / "scratch" / "s.1") is None
    cgroup.remove_cgroups(tmp_path / "scratch", lambda name: True)
    assert kernel.tree() == before


def test_refused_we_move_back(kernel):
    (kernel.service / "cgroup.procs").write_text("")
    controllers_refused(kernel)
    assert delegation.set_up_delegation() is None
    assert (kernel.service / "cgroup.procs").read_text() == str(os.getpid())
    assert [files["cgroup.procs"] for files in kernel.removed] == [str(os.getpid())]  # the leaf


@pytest.mark.parametrize("control", ["", "memory", "cpu pids"])
def test_a_leaf_whose_siblings_are_not_limited_is_no_room(kernel, control):
    kernel.put_us(f"/system/agents/{SERVER_CGROUP}")
    (kernel.service / "cgroup.subtree_control").write_text(control)
    assert delegation.find_delegated_cgroup() is None


@pytest.fixture
def another_user():
    """Root may write whatever is a plain file."""
    before = os.getresuid()
    if before[1] == 0:
        os.setresuid(65534, 65534, 0)
    yield
    os.setresuid(*before)


def test_a_hierarchy_that_is_not_ours_to_write_stays_as_it_is(kernel, another_user):
    before = kernel.tree()
    assert delegation.set_up_delegation() is None
    assert kernel.tree() == before and f"system/agents/{SERVER_CGROUP}" not in before


def test_room_that_is_not_ours_to_write_is_none(settled_kernel, another_user):
    assert Path(settled_kernel.service, "cgroup.subtree_control").read_text() == "memory pids\n"
    assert delegation.find_delegated_cgroup() is None


# --- the cgroup of a sandbox --------------------------------------------------------------------------------------------


def test_limits_are_written(made):
    written = {name: (made.folder / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max")}
    assert written == {"memory.max": str(200 * MIB), "memory.swap.max": "0", "pids.max": str(50 * THREADS_PER_PROCESS)}


@pytest.mark.parametrize("refused", ["memory.max", "pids.max"])
def test_a_cgroup_without_its_limits_is_given_up(kernel, tmp_path, monkeypatch, refused):
    kernel.settled()
    write = Path.write_text

    def refuse(path, text):
        if path.name == refused:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", refuse)
    assert make(tmp_path / "s.1") is None
    assert [path.name for path in kernel.service.iterdir() if path.is_dir()] == [SERVER_CGROUP]


def test_a_kernel_that_does_not_count_swap_will_do(kernel, tmp_path, monkeypatch):
    kernel.settled()
    write = Path.write_text

    def refuse(path, text):
        if path.name == "memory.swap.max":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", refuse)
    assert (make(tmp_path / "s.1").folder / "memory.max").exists()


def test_what_the_kernel_did_between_two_looks(made):
    assert made.take_limit_event() == ""
    enforce(made.folder, "memory.events", "oom 2\noom_kill 1\n")
    assert (made.take_limit_event(), made.take_limit_event()) == ("memory", "")
    enforce(made.folder, "pids.events", "max 7\n")
    assert (made.take_limit_event(), made.take_limit_event()) == ("processes", "")
    enforce(made.folder, "memory.events", "oom 3\noom_kill 2\n")
    assert (made.take_limit_event(), made.take_limit_event()) == ("memory", "")


def test_a_kill_for_lack_of_memory_on_the_whole_machine_is_no_limit(made):
    enforce(made.folder, "memory.events", "oom 0\noom_kill 1\n")
    assert made.take_limit_event() == ""


def test_a_cgroup_that_is_gone_says_nothing(made):
    made.remove()
    assert made.take_limit_event() == ""
    made.remove()


def test_removal_ends_what_is_inside_and_waits_for_it(kernel, made):
    with subprocess.Popen(made.wrap_command(["sleep", "60"])) as inside:
        eventually(lambda: (made.folder / "cgroup.procs").exists(), what="the process is in")
        assert (made.folder / "cgroup.procs").read_text() == f"{inside.pid}\n"
        removing = threading.Thread(target=made.remove)
        removing.start()
        eventually(lambda: (made.folder / "cgroup.kill").exists(), what="the kernel is asked")
        assert made.folder.exists() and removing.is_alive()
        inside.kill()
        inside.wait()
        removing.join()
    assert not made.folder.exists() and kernel.removed[-1]["cgroup.kill"] == "1"


def test_a_cgroup_that_cannot_be_removed_is_left(made, monkeypatch, caplog):
    monkeypatch.setattr(cgroup, "REMOVE_TIMEOUT_S", 0.05)
    (made.folder / "cgroup.procs").write_text(str(os.getpid()))
    made.remove()
    assert made.folder.exists() and "cannot be removed" in caplog.text
    (made.folder / "cgroup.procs").unlink()


def test_a_dead_servers_cgroups_are_removed_and_no_others(kernel, tmp_path):
    kernel.settled()
    ours, theirs = (
        Settings(data_path=tmp_path, sif_dir=tmp_path, work_dir=tmp_path / name) for name in ("ours", "theirs")
    )
    ours.scratch_dir.mkdir(parents=True)
    left, active, another = (
        make(ours.scratch_dir / "left.1"),
        make(ours.scratch_dir / "active.2"),
        make(theirs.scratch_dir / "left.1"),
    )
    reclaim_orphans(ours, {"active.2"})
    assert [made.folder.exists() for made in (left, active, another)] == [False, True, True]
    assert (kernel.service / SERVER_CGROUP).exists()


# --- a whole sandbox ----------------------------------------------------------------------------------------------------


@pytest.fixture
def start(kernel, tmp_path, demo_image, monkeypatch):
    """A real sandbox with a cgroup. The program in front of Apptainer notes what the cgroup holds before it runs."""
    kernel.settled()
    bin, started = tmp_path / "bin", []
    bin.mkdir()
    (bin / "apptainer").write_text(
        f"#!/bin/sh\n(cd {kernel.service}/sandbox.* && echo $$ && grep -h . cgroup.procs memory.max pids.max) >{tmp_path}/seen\n"
        f'exec {apptainer.find_apptainer()} "$@"\n'
    )
    (bin / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")

    def start():
        started.append(apptainer.start(demo_image, scratch=tmp_path, env={}, start_timeout_s=30, limits=LIMITS))
        folder = next(kernel.service.glob("sandbox.*"))
        enforce(folder, "memory.events", "oom 0\noom_kill 0\n")
        enforce(folder, "pids.events", "max 0\n")
        return started[-1], folder

    yield start
    for sandbox in started:
        sandbox.close()


def run(sandbox, command):
    return sandbox.run(command, cwd="/tmp", timeout_s=20)


def test_the_sandbox_is_limited_before_its_program_runs(start, kernel, tmp_path):
    sandbox, folder = start()
    assert list(map(int, (tmp_path / "seen").read_text().split())) == [
        sandbox.pid,
        sandbox.pid,
        LIMITS.memory_bytes,
        LIMITS.tasks,
    ]
    assert (
        run(sandbox, "cat /proc/$PPID/oom_score_adj /proc/self/oom_score_adj").output == "0\n1000\n"
    )  # the shell and init live on
    sandbox.close()
    assert not folder.exists() and kernel.removed[-1]["cgroup.kill"] == "1"


@pytest.mark.parametrize(
    ("file", "text", "limit"),
    [("memory.events", "oom 1\noom_kill 1\n", "memory"), ("pids.events", "max 3\n", "processes")],
)
def test_what_the_kernel_stopped_ends_the_command(start, file, text, limit):
    sandbox, folder = start()
    counting = threading.Timer(0.5, enforce, (folder, file, text))
    counting.start()
    result = run(sandbox, "sleep 600 & echo begun; sleep 15")
    counting.join()
    assert (result.output, result.returncode, result.limit) == ("begun\n", 137, limit)
    assert not {process.pid for process in descendants(sandbox.pid) if _lives(process.pid)} - set(sandbox.pids)
    assert run(sandbox, "echo alive").limit == ""


def test_a_command_that_ends_before_the_next_look_is_told_too(start, monkeypatch):
    monkeypatch.setattr("agent_server.sandboxes.watchdog.CHECK_INTERVAL_S", 600.0)
    sandbox, folder = start()
    run(sandbox, "true")
    ending = sandbox._run_command

    def killed_by_kernel(*arguments):
        result = ending(*arguments)
        enforce(folder, "memory.events", "oom 1\noom_kill 1\n")
        return result

    monkeypatch.setattr(sandbox, "_run_command", killed_by_kernel)
    assert run(sandbox, "exit 1").limit == "memory"
    monkeypatch.undo()
    assert run(sandbox, "exit 1").limit == ""


def test_a_sandbox_that_dies_of_its_memory_says_so(start):
    sandbox, folder = start()
    enforce(folder, "memory.events", "oom 1\noom_kill 1\n")
    os.kill(sandbox.shell_pid, 9)
    with pytest.raises(SandboxLimitExceeded, match="memory"):
        run(sandbox, "true")


def test_nothing_runs_outside_a_cgroup_that_cannot_be_entered(made):
    shutil.rmtree(made.folder)
    with pytest.raises(SandboxStartFailed, match="cgroup.procs"):
        PersistentShell(["bash", "-s"], start_timeout_s=5, cgroup=made)
