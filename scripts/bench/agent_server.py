"""Overhead of a session beyond its commands and tests, and sessions per second, next to a baseline in the same run.

    python -m scripts.bench.agent_server [--sessions 64] [--concurrency 16] [--queued 1000]

The baseline: a fresh interpreter that imports the agent, `apptainer instance start`, one `apptainer exec` per
command, grading in a second instance, and a client that polls every three seconds. Its model calls cost nothing.
Invariant: both run the same commands and the same tests on the same image. CPU time is the whole machine's, so run
it alone.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as parquet

from agent_server.sandboxes import apptainer
from client.wire import SessionRequest
from scripts.bench.queue import measure_queue
from scripts.bench.serving import DEMO, BenchServer, agent_server
from tests.scripted_model import ScriptedModel, serving

ROW = parquet.read_table(DEMO / "tasks" / "train.parquet").to_pylist()[0]
FIX = f"git apply -R <<'END'\n{ROW['patch'].rstrip()}\nEND"
COMMANDS = [FIX, *["sleep 0.05"] * 8]  # the tenth turn submits
IMAGE = apptainer.image_path(DEMO / "images", ROW["image_name"])
POLL_S = 3.0
PREPARE = f"cat > /tmp/bug.patch <<'END'\n{ROW['patch']}END\ngit apply /tmp/bug.patch"
SUBMIT = "git add -A && git diff --cached HEAD"


@dataclass(frozen=True, slots=True)
class Measured:
    seconds_each: list[float]
    wall_s: float
    cpu_s: float

    @property
    def per_second(self) -> float:
        return len(self.seconds_each) / self.wall_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--queued", type=int, default=1000)
    arguments = parser.parse_args()
    work_s = measure_work_s()
    with serving() as model, agent_server(agent_config="tools", train_concurrency=arguments.concurrency) as server:
        run_session(server, model)  # warms the server up
        alone = [run_session(server, model) for _ in range(5)]
        many = measure(lambda: run_session(server, model), arguments.sessions, arguments.concurrency)
    alone_baseline = [run_baseline() for _ in range(3)]
    many_baseline = measure(run_baseline, arguments.sessions, arguments.concurrency)
    report(work_s, alone, alone_baseline, many, many_baseline)
    measure_queue(arguments.queued)


def measure_work_s() -> float:
    """Return the seconds of the commands and the tests alone, in a running sandbox. Median of three."""
    totals = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as scratch:
            sandbox = apptainer.start(IMAGE, scratch=Path(scratch), env={}, start_timeout_s=60)
        try:
            sandbox.run(PREPARE, cwd="/testbed", timeout_s=60)
            totals.append(
                sum(
                    sandbox.run(command, cwd="/testbed", timeout_s=60).seconds
                    for command in [*COMMANDS, ROW["test_cmd"]]
                )
            )
        finally:
            sandbox.close()
    return statistics.median(totals)


def run_session(server: BenchServer, model: ScriptedModel) -> float:
    key = uuid.uuid4().hex
    model.scripts[key] = COMMANDS
    started = time.monotonic()
    request = SessionRequest(
        session_id=key, group_id=key, mode="train", base_url=model.url, api_key=key, task_id=ROW["instance_id"]
    )
    view = server.client.wait(server.client.create(request), timeout_s=600)
    assert view.reward == 1.0 and view.n_calls == len(COMMANDS) + 1, view
    return time.monotonic() - started


def run_baseline() -> float:
    """Return the seconds until a client that polls every POLL_S sees the end."""
    started = time.monotonic()
    _run(sys.executable, "-c", "from agent_server.agents import mini; mini.preload()")
    agent, grader = (f"bench{uuid.uuid4().hex[:12]}" for _ in range(2))
    instance(agent, lambda: [execute(agent, command) for command in (PREPARE, *COMMANDS, SUBMIT)])
    instance(grader, lambda: [execute(grader, command) for command in (PREPARE, FIX, ROW["test_cmd"])])
    elapsed = time.monotonic() - started
    polled = POLL_S * (elapsed // POLL_S + 1)
    time.sleep(polled - elapsed)
    return polled


def instance(name: str, use: Callable[[], object]) -> None:
    """Call `use` while an instance of that name runs."""
    program = apptainer.find_apptainer()
    options = [
        "--containall",
        "--cleanenv",
        "--writable-tmpfs",
        "--no-home",
        *(["--no-privs"] if os.geteuid() == 0 else []),
    ]
    _run(program, "instance", "start", *options, IMAGE, name)
    try:
        use()
    finally:
        _run(program, "instance", "stop", name)


def execute(name: str, command: str) -> None:
    _run(apptainer.find_apptainer(), "exec", "--pwd", "/testbed", f"instance://{name}", "bash", "-c", command)


def _run(*command: object) -> None:
    # No pipe, because an instance's starter would hold it open.
    silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([str(part) for part in command], check=True, **silent)


def measure(session: Callable[[], float], n: int, concurrency: int) -> Measured:
    cpu_before, started = machine_cpu_s(), time.monotonic()
    with ThreadPoolExecutor(concurrency) as pool:
        seconds_each = list(pool.map(lambda _: session(), range(n)))
    return Measured(seconds_each, time.monotonic() - started, machine_cpu_s() - cpu_before)


def machine_cpu_s() -> float:
    """Return the CPU seconds of this machine since boot, without idle and I/O wait."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def report(
    work_s: float, alone: list[float], alone_baseline: list[float], many: Measured, many_baseline: Measured
) -> None:
    ours, baseline = statistics.median(alone) - work_s, statistics.median(alone_baseline) - work_s
    print(f"one session of {len(COMMANDS) + 1} turns; commands and tests alone take {work_s:.2f} s")
    print(f"{'':34} {'ours':>8} {'baseline':>8} {'ratio':>7}  bound")
    print(f"{'overhead of one session, s':34} {ours:8.2f} {baseline:8.2f} {baseline / ours:7.1f}  1.0, a tenth")
    print(f"{len(many.seconds_each)} sessions, with the same concurrency for both:")
    rate, baseline_rate = many.per_second, many_baseline.per_second
    print(f"{'sessions per second':34} {rate:8.2f} {baseline_rate:8.2f} {rate / baseline_rate:7.1f}  4 times")
    cpu_s = many.cpu_s / len(many.seconds_each)
    baseline_cpu_s = many_baseline.cpu_s / len(many_baseline.seconds_each)
    print(f"{'CPU seconds per session':34} {cpu_s:8.2f} {baseline_cpu_s:8.2f} {baseline_cpu_s / cpu_s:7.1f}")


if __name__ == "__main__":
    sys.exit(main())
