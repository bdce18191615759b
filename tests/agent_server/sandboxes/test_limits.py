"""Limits of real sandboxes: what exceeds one is killed, its sandbox works on, and a neighbour is not affected."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agent_server.sandboxes import apptainer
from agent_server.sandboxes.limits import Limits
from agent_server.sandboxes.processes import descendants, read_process
from client.errors import SandboxDied, SandboxLimitExceeded
from tests.agent_server.conftest import ROOT, eventually
from tests.agent_server.sandboxes.exceed_limits import CPU_BURNER, DISK_FILLER, FORK_BOMB, LIMITS, MEMORY_HOG


@pytest.fixture
def start(tmp_path, demo_image):
    """A factory of sandboxes. All their processes must be gone after the test."""
    started = []

    def start(limits: Limits = LIMITS):
        started.append(apptainer.start(demo_image, scratch=tmp_path, env={}, start_timeout_s=30, limits=limits))
        return started[-1]

    children = len(descendants(os.getpid()))
    yield start
    for sandbox in started:
        sandbox.close()
    eventually(lambda: len(descendants(os.getpid())) <= children, what="every process of the sandboxes gone")


def run(sandbox, command, timeout_s=15.0):
    return sandbox.run(command, cwd="/tmp", timeout_s=timeout_s)


def count(sandbox) -> int:
    return len([p for p in descendants(sandbox.pid) if p.state != "Z"])


@pytest.fixture
def neighbour(start):
    """Another sandbox, busy during the whole test: a background process, and one command after the other."""
    sandbox, stop, results = start(), threading.Event(), []
    run(sandbox, "sleep 600 & echo $! > /tmp/background")

    def work() -> None:
        while not stop.is_set():
            results.append(run(sandbox, "n=0; for i in $(seq 500); do n=$((n + i)); done; echo $n"))

    thread = threading.Thread(target=work)
    thread.start()
    yield
    stop.set()
    thread.join()
    assert results and {(result.output, result.returncode, result.limit) for result in results} == {("125250\n", 0, "")}
    assert max(result.seconds for result in results) < 2.0
    assert run(sandbox, "kill -0 $(cat /tmp/background) && echo lives").output == "lives\n"


def test_a_memory_hog_is_killed(start, neighbour):
    sandbox = start()
    before = count(sandbox)
    result = run(sandbox, f"echo begun; {MEMORY_HOG}")
    assert (result.output, result.returncode, result.limit) == ("begun\n", 137, "memory")
    assert count(sandbox) == before
    assert run(sandbox, "echo alive").limit == ""


def test_shared_memory_counts_once(start):
    """Eight processes of 60 MiB each that share 50 MiB: 480 MiB resident, 130 MiB proportional."""
    result = run(
        start(), "python3 -c 'import os, time; a = bytearray(50 << 20); [os.fork() for n in range(3)]; time.sleep(1)'"
    )
    assert (result.returncode, result.limit) == (0, "")


def test_memory_of_many_small_processes_adds_up(start):
    result = run(
        start(),
        "for n in $(seq 8); do timeout 10 python3 -c 'import time; a = bytearray(40 << 20); time.sleep(8)' & done; "
        "wait",
    )
    assert result.limit == "memory"


def test_files_are_memory(start):
    sandbox = start()
    assert run(sandbox, "head -c 55M /dev/zero > /dev/shm/file").limit == ""
    assert (
        run(sandbox, "timeout 10 python3 -c 'import time; a = bytearray(170 << 20); time.sleep(8)'").limit == "memory"
    )
    assert run(sandbox, "rm /dev/shm/file; timeout 10 python3 -c 'a = bytearray(120 << 20)'").limit == ""


def test_a_fork_bomb_is_stopped(start, neighbour):
    sandbox = start()
    before = count(sandbox)
    result = run(sandbox, f"echo begun; {FORK_BOMB}")
    assert (result.output, result.returncode, result.limit) == ("begun\n", 137, "processes")
    assert result.seconds < 4.0
    time.sleep(1.0)
    assert count(sandbox) == before
    assert run(sandbox, "echo alive").limit == ""


def test_threads_count_too(start):
    script = "import threading, time; [threading.Thread(target=time.sleep, args=(8,)).start() for n in range(500)]"
    assert run(start(), f"timeout 10 python3 -c '{script}'").limit == "processes"


@pytest.mark.parametrize("folder", ["/testbed", "/tmp", "/dev/shm", "/dev", "/var/tmp"])
def test_a_disk_filler_is_killed_and_files_can_be_deleted(start, folder):
    sandbox = start()
    result = run(sandbox, f"echo begun; {DISK_FILLER.format(folder)}")
    assert (result.output, result.returncode, result.limit) == ("begun\n", 137, "disk")
    # In a full sandbox, writing is over the limit and reading is not.
    assert run(sandbox, f"head -c 20M /dev/zero > {folder}/more; sleep 1").limit == "disk"
    assert run(sandbox, f"ls {folder}/filler.1; sleep 0.5").limit == ""
    assert run(sandbox, f"rm {folder}/filler.* {folder}/more; sleep 0.5").limit == ""
    assert run(sandbox, f"head -c 20M /dev/zero > {folder}/more; sleep 0.5").limit == ""


def test_many_empty_files_count(start):
    script = 'import os, time; [os.close(os.open(f"/tmp/{n}", 64)) for n in range(100_000)]; time.sleep(5)'
    assert run(start(), f"timeout 15 python3 -c '{script}'").limit == "disk"


@pytest.mark.parametrize(
    "program",
    [CPU_BURNER, "timeout 30 sh -c 'while :; do sh -c \"for i in $(seq 3000); do :; done\"; done'"],
    ids=["one", "short-lived"],
)
def test_a_cpu_burner_is_killed_with_its_sandbox(start, program, neighbour):
    sandbox = start(Limits(LIMITS.memory_bytes, LIMITS.processes, LIMITS.disk_bytes, cpu_s=1.0))
    started = time.monotonic()
    with pytest.raises(SandboxLimitExceeded) as exceeded:
        run(sandbox, program, timeout_s=30)
    assert exceeded.value.limit == "cpu" and time.monotonic() - started < 15
    with pytest.raises(SandboxLimitExceeded):
        run(sandbox, "true")
    with pytest.raises(SandboxLimitExceeded):
        sandbox.write_file("/tmp/x", "x")


@pytest.mark.parametrize(
    "program", [MEMORY_HOG, FORK_BOMB, DISK_FILLER.format("/tmp")], ids=["memory", "processes", "disk"]
)
def test_background_processes_are_limited_too(start, program):
    sandbox = start()
    before = count(sandbox)
    assert run(sandbox, f"({program}) >/dev/null 2>&1 &").limit == ""
    eventually(lambda: count(sandbox) > before, what="the program runs")
    eventually(lambda: count(sandbox) == before, within_s=15.0, what="the program was killed")
    assert run(sandbox, "echo alive").output == "alive\n"


def test_processes_that_cannot_be_killed_alone_end_with_their_sandbox(start, monkeypatch):
    monkeypatch.setattr("agent_server.sandboxes.procfs.SandboxProcfs.kill_processes", lambda self, timeout_s: False)
    sandbox = start()
    with pytest.raises(SandboxLimitExceeded, match="processes"):
        run(sandbox, FORK_BOMB)
    eventually(lambda: count(sandbox) == 0, what="all of it gone")


def test_watching_an_idle_sandbox_costs_under_one_percent_of_a_core(start):
    watchdog = start()._watchdog.pid

    def cpu_s() -> float:
        return int(Path(f"/proc/{watchdog}/schedstat").read_text().split()[0]) / 1e9

    time.sleep(0.5)
    before = cpu_s()
    time.sleep(3.0)
    assert (cpu_s() - before) / 3.0 < 0.01


def test_usage_is_known_after_an_interrupted_request(start):
    """A worker is interrupted in whatever call it is, also while it waits for a reply."""
    sandbox = start()
    run(sandbox, "true")
    sandbox._watchdog._socket.sendall(b"command_started")
    assert sandbox.resource_usage().peak_bytes > 0
    assert sandbox.resource_usage().peak_bytes > 0


def test_a_sandbox_without_its_watchdog_runs_nothing(start):
    sandbox = start()
    os.kill(sandbox._watchdog.pid, signal.SIGKILL)
    with pytest.raises(SandboxDied, match="watchdog"):
        run(sandbox, "echo not reached")


def test_a_killed_watchdog_is_noticed_while_a_command_runs(start):
    sandbox = start()
    killer = threading.Timer(1.0, os.kill, (sandbox._watchdog.pid, signal.SIGKILL))
    killer.start()
    before = time.monotonic()
    with pytest.raises(SandboxDied, match="watchdog"):
        run(sandbox, "sleep 60", timeout_s=60.0)
    assert time.monotonic() - before < 10.0
    killer.join()


def test_nothing_runs_on_in_the_background_without_a_watchdog(start):
    """The agent may be at a model call, which takes minutes: no command would notice."""
    sandbox = start()
    run(sandbox, "sleep 600 &")
    assert count(sandbox) > 1
    os.kill(sandbox._watchdog.pid, signal.SIGKILL)
    eventually(lambda: count(sandbox) == 0, what="the sandbox gone")


def test_a_sandbox_ends_with_its_worker(tmp_path, demo_image):
    script = (
        "from pathlib import Path\n"
        "from agent_server.sandboxes import apptainer\n"
        "from agent_server.sandboxes.limits import Limits\n"
        f"image, scratch = Path({str(demo_image)!r}), Path({str(tmp_path)!r})\n"
        "limits = Limits(2**28, 50, 2**26, 99)\n"
        "sandbox = apptainer.start(image, scratch=scratch, env={}, start_timeout_s=30, limits=limits)\n"
        "print(sandbox.shell_pid, flush=True)\n"
        "sandbox.run('sleep 1000', cwd='/', timeout_s=1000)"
    )
    worker = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    shell = int(worker.stdout.readline())
    eventually(lambda: len(descendants(shell)) > 0, what="the command runs")
    assert read_process(shell)
    worker.kill()
    worker.wait()
    worker.stdout.close()
    eventually(lambda: not read_process(shell), within_s=2.0, what="the sandbox gone")
