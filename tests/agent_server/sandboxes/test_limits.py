"""A sandbox's limits, for real: what is over one is ended, its sandbox works on, and a neighbour notices nothing.

Every bad program here has a bound of its own (`timeout`, a size), so that a watchdog that fails costs a test, not the machine.
"""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from agent_server.sandboxes import apptainer
from agent_server.sandboxes.limits import Limits
from agent_server.sandboxes.processes import descendants, read_process
from client.errors import SandboxDied, SandboxLimitExceeded
from tests.agent_server.conftest import FILE, FIX, ROOT, eventually, launch, shut_down

MIB = 2**20
LIMITS = Limits(memory_bytes=200 * MIB, processes=50, disk_bytes=60 * MIB, cpu_s=1000.0)
MEMORY_HOG = "timeout 20 python3 -c 'import time; a = [bytearray(5 << 20) for n in range(200) if not time.sleep(0.02)]; time.sleep(20)'"
# Doubles ten times, each child in a session of its own: 1,024 processes where nothing stops it.
FORK_BOMB = "timeout 20 python3 -c 'import os, time; [os.fork() or os.setsid() for n in range(10)]; end = time.time() + 12; [0 for n in iter(time.time, 0) if n > end and exit()]'"
DISK_FILLER = (
    "timeout 20 sh -c 'for n in $(seq 50); do head -c 5M /dev/zero > {}/filler.$n; sleep 0.02; done; sleep 10'"
)
CPU_BURNER = "timeout 30 sh -c 'while :; do :; done'"


@pytest.fixture
def start(tmp_path, demo_image):
    """A factory of sandboxes. After the test nothing of any of them is left."""
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
    """Another sandbox at work all the while: a background process, and one command after the other."""
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


def test_a_memory_hog_is_ended(start, neighbour):
    sandbox = start()
    before = count(sandbox)
    result = run(sandbox, f"echo begun; {MEMORY_HOG}")
    assert (result.output, result.returncode, result.limit) == ("begun\n", 137, "memory")
    assert count(sandbox) == before
    assert run(sandbox, "echo alive").limit == ""


def test_memory_is_counted_once_for_all_that_share_it(start):
    """Eight processes of 60 MiB that share 50 of them: 480 by residence, 130 in truth."""
    result = run(
        start(), "python3 -c 'import os, time; a = bytearray(50 << 20); [os.fork() for n in range(3)]; time.sleep(1)'"
    )
    assert (result.returncode, result.limit) == (0, "")


def test_memory_of_many_small_processes_adds_up(start):
    result = run(
        start(),
        "for n in $(seq 8); do timeout 10 python3 -c 'import time; a = bytearray(40 << 20); time.sleep(8)' & done; wait",
    )
    assert result.limit == "memory"


def test_files_are_memory(start):
    sandbox = start()
    assert run(sandbox, "head -c 55M /dev/zero > /dev/shm/file").limit == ""
    assert (
        run(sandbox, "timeout 10 python3 -c 'import time; a = bytearray(170 << 20); time.sleep(8)'").limit == "memory"
    )
    assert run(sandbox, "rm /dev/shm/file; timeout 10 python3 -c 'a = bytearray(120 << 20)'").limit == ""


def test_a_fork_bomb_is_stopped_for_good(start, neighbour):
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
def test_a_disk_filler_is_ended_and_files_can_be_deleted(start, folder):
    sandbox = start()
    result = run(sandbox, f"echo begun; {DISK_FILLER.format(folder)}")
    assert (result.output, result.returncode, result.limit) == ("begun\n", 137, "disk")
    # Full: more is refused, what writes nothing runs.
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
def test_a_cpu_burner_ends_its_sandbox(start, program, neighbour):
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
def test_what_a_command_left_running_is_watched_too(start, program):
    sandbox = start()
    before = count(sandbox)
    assert run(sandbox, f"({program}) >/dev/null 2>&1 &").limit == ""
    eventually(lambda: count(sandbox) > before, what="the program runs")
    eventually(lambda: count(sandbox) == before, within_s=15.0, what="the program was ended")
    assert run(sandbox, "echo alive").output == "alive\n"


def test_what_cannot_be_ended_alone_ends_with_its_sandbox(start, monkeypatch):
    monkeypatch.setattr("agent_server.sandboxes.procfs.SandboxProcfs.kill_processes", lambda self, timeout_s: False)
    sandbox = start()
    with pytest.raises(SandboxLimitExceeded, match="processes"):
        run(sandbox, FORK_BOMB)
    eventually(lambda: count(sandbox) == 0, what="all of it gone")


def test_watching_an_idle_sandbox_costs_next_to_nothing(start):
    watchdog = start()._watchdog.pid

    def cpu_s() -> float:
        return int(Path(f"/proc/{watchdog}/schedstat").read_text().split()[0]) / 1e9

    time.sleep(0.5)
    before = cpu_s()
    time.sleep(3.0)
    assert (cpu_s() - before) / 3.0 < 0.01


def test_a_sandbox_does_not_run_unwatched(start):
    sandbox = start()
    os.kill(sandbox._watchdog.pid, signal.SIGKILL)
    with pytest.raises(SandboxDied, match="watchdog"):
        run(sandbox, "echo not reached")


def test_a_sandbox_ends_with_its_worker(tmp_path, demo_image):
    script = (
        "import os, sys; from pathlib import Path; from agent_server.sandboxes import apptainer; from agent_server.sandboxes.limits import Limits\n"
        f"sandbox = apptainer.start(Path({str(demo_image)!r}), scratch=Path({str(tmp_path)!r}), env={{}}, start_timeout_s=30, limits=Limits(2**28, 50, 2**26, 99))\n"
        "print(sandbox.shell_pid, flush=True); sandbox.run('sleep 1000', cwd='/', timeout_s=1000)"
    )
    worker = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    shell = int(worker.stdout.readline())
    time.sleep(0.2)
    assert read_process(shell)
    worker.kill()
    worker.wait()
    worker.stdout.close()
    eventually(lambda: not read_process(shell), within_s=2.0, what="the sandbox gone")


# --- through the whole server -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_server(tmp_path_factory):
    """With small limits, and a mark in its environment that must not be seen inside."""
    running = launch(
        tmp_path_factory.mktemp("small") / "work",
        AGENT_SERVER_SANDBOX_MEMORY_MIB="200", AGENT_SERVER_SANDBOX_PROCESSES="50", AGENT_SERVER_SANDBOX_DISK_MIB="60", AGENT_SERVER_SANDBOX_CPU_S="3",
        MARK="mark-of-the-host", APPTAINERENV_SMUGGLED="mark-of-the-host", APPTAINER_BIND=f"{ROOT}:/mnt",
    )  # fmt: skip
    yield running
    shut_down(running)


@pytest.mark.parametrize(
    ("program", "word"),
    [(MEMORY_HOG, "memory"), (FORK_BOMB, "processes"), (DISK_FILLER.format("/tmp"), "disk")],
    ids=["memory", "processes", "disk"],
)
def test_the_agent_is_told_and_goes_on(small_server, model, program, word):
    key = f"limit {word}"
    view = small_server.run(model, [program, FIX], key=key)
    seen = model.requests[key][1]["messages"][-1]["content"]
    assert "<exception>" in seen and word in seen and "<returncode>137" in seen
    assert (view.status, view.reward, view.agent_exit_status) == ("completed", 1.0, "Submitted")


def test_cpu_time_is_the_agents_own_ending(small_server, model):
    view = small_server.run(model, [FIX, CPU_BURNER])
    assert (view.status, view.exit_code, view.error) == ("completed", 0, None)
    assert (view.reward, view.agent_exit_status, view.submission, view.n_calls) == (
        0.0,
        "SandboxLimitExceeded: cpu",
        "",
        2,
    )
    assert view.grade["status"] == "no_submission"


@pytest.mark.parametrize(
    ("program", "limit"),
    [
        ("a = [bytearray(5 << 20) for n in range(100)]; import time; time.sleep(10)", "memory"),
        ("any(0 for n in iter(int, 1))", "cpu"),
    ],
    ids=["memory", "cpu"],
)
def test_tests_that_exceed_a_limit_have_failed(small_server, model, program, limit):
    view = small_server.run(model, [f"{FIX}\nsed -i '1i {program}' {FILE}"])
    assert (view.status, view.reward, view.agent_exit_status) == ("completed", 0.0, "Submitted")
    assert (view.grade["status"], view.grade["limit"]) == ("graded", limit)


def test_nothing_of_the_host_is_visible_inside(small_server, model):
    """Environment, arguments and descriptors of every process, mounts and files name neither the key nor our variables and folders."""
    key = f"key-{uuid.uuid4().hex}"
    look = (
        "(cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/mountinfo | tr '\\0' '\\n'; ls -l /proc/[0-9]*/fd /proc/[0-9]*/cwd; env; "
        "ls / /mnt /root /home; grep -rhI --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr --exclude=look -e work -e key- -e mark- -e SERVER /) "
        ">/tmp/look 2>/dev/null"
    )
    secrets = [key, "mark-of-the-host", str(small_server.work_dir), str(ROOT), "AGENT_SERVER"]
    known = ["APPTAINER_NAME", "overlay", "PAGER=cat", "/memfd:output"]  # what the look does find
    counts = "; ".join(f"grep -c -F -- {pattern} /tmp/look" for pattern in secrets + known)
    small_server.run(model, [look, counts], key=key)
    seen = model.requests[key][2]["messages"][-1]["content"]
    numbers = [int(line) for line in seen.splitlines() if line.isdigit()]
    assert numbers[: len(secrets)] == [0] * len(secrets), (secrets, numbers)
    assert len(numbers) == len(secrets + known) and all(numbers[len(secrets) :]), numbers
