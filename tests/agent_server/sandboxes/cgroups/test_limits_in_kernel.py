"""Real sandboxes in a cgroup: the limits that the kernel enforces end a command like those of the watchdog."""

import os
import shutil
import threading

import pytest

from agent_server.sandboxes import apptainer
from agent_server.sandboxes.processes import descendants
from agent_server.sandboxes.shell import PersistentShell
from client.errors import SandboxLimitExceeded, SandboxStartFailed
from tests.agent_server.conftest import eventually
from tests.agent_server.sandboxes.cgroups.fake_cgroupfs import is_alive, set_counters
from tests.agent_server.sandboxes.exceed_limits import LIMITS


@pytest.fixture
def start(cgroupfs, tmp_path, demo_image, monkeypatch):
    """A factory of real sandboxes with a cgroup. A wrapper of Apptainer records the cgroup's files before it runs."""
    cgroupfs.set_up()
    programs, started = tmp_path / "bin", []
    programs.mkdir()
    (programs / "apptainer").write_text(
        "#!/bin/sh\n"
        f"cd {cgroupfs.service}/sandbox.* && (echo $$ && grep -h . cgroup.procs memory.max pids.max) >{tmp_path}/seen\n"
        f'cd / && exec {apptainer.find_apptainer()} "$@"\n'
    )
    (programs / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")

    def start():
        started.append(apptainer.start(demo_image, scratch=tmp_path, env={}, start_timeout_s=30, limits=LIMITS))
        folder = next(cgroupfs.service.glob("sandbox.*"))
        set_counters(folder, "memory.events", "oom 0\noom_kill 0\n")
        set_counters(folder, "pids.events", "max 0\n")
        return started[-1], folder

    yield start
    for sandbox in started:
        sandbox.close()


def run(sandbox, command):
    return sandbox.run(command, cwd="/tmp", timeout_s=20)


def test_the_sandbox_is_limited_before_its_program_runs(start, cgroupfs, tmp_path):
    sandbox, folder = start()
    assert list(map(int, (tmp_path / "seen").read_text().split())) == [
        sandbox.pid,
        sandbox.pid,
        LIMITS.memory_bytes,
        LIMITS.tasks,
    ]
    # The kernel kills commands first, not the shell.
    assert run(sandbox, "cat /proc/$PPID/oom_score_adj /proc/self/oom_score_adj").output == "0\n1000\n"
    sandbox.close()
    assert not folder.exists() and cgroupfs.removed[-1]["cgroup.kill"] == "1"


@pytest.mark.parametrize(
    ("file", "text", "limit"),
    [("memory.events", "oom 1\noom_kill 1\n", "memory"), ("pids.events", "max 3\n", "processes")],
)
def test_a_kernel_event_ends_the_command(start, file, text, limit):
    sandbox, folder = start()

    def count_once_begun():
        outputs = sandbox._outputs.descriptors
        eventually(lambda: any(os.fstat(number).st_size for number in outputs), what="the command's output")
        set_counters(folder, file, text)

    counting = threading.Thread(target=count_once_begun)
    counting.start()
    result = run(sandbox, "sleep 600 & echo begun; sleep 15")
    counting.join()
    assert (result.output, result.returncode, result.limit) == ("begun\n", 137, limit)
    assert not {process.pid for process in descendants(sandbox.pid) if is_alive(process.pid)} - set(sandbox.pids)
    assert run(sandbox, "echo alive").limit == ""


def test_a_command_that_ends_before_the_next_check_is_limited_too(start, monkeypatch):
    monkeypatch.setattr("agent_server.sandboxes.watchdog.CHECK_INTERVAL_S", 600.0)
    sandbox, folder = start()
    run(sandbox, "true")
    run_command = sandbox._run_to_end

    def killed_by_kernel(*arguments):
        result = run_command(*arguments)
        set_counters(folder, "memory.events", "oom 1\noom_kill 1\n")
        return result

    monkeypatch.setattr(sandbox, "_run_to_end", killed_by_kernel)
    assert run(sandbox, "exit 1").limit == "memory"
    monkeypatch.undo()
    assert run(sandbox, "exit 1").limit == ""


def test_a_sandbox_that_dies_over_its_memory_raises_the_limit(start):
    sandbox, folder = start()
    set_counters(folder, "memory.events", "oom 1\noom_kill 1\n")
    os.kill(sandbox.shell_pid, 9)
    with pytest.raises(SandboxLimitExceeded, match="memory"):
        run(sandbox, "true")


def test_no_program_runs_outside_a_cgroup_that_cannot_be_entered(group):
    shutil.rmtree(group.folder)
    with pytest.raises(SandboxStartFailed, match="cgroup.procs"):
        PersistentShell(["bash", "-s"], start_timeout_s=5, cgroup=group)
