"""What a session costs beyond its commands and tests, and sessions a second; beside the usual way, in the same run.

    python -m scripts.bench.agent_server [--sessions 64] [--concurrency 16] [--queued 1000]

The usual way: a fresh interpreter that imports the agent, `apptainer instance start`, one `apptainer exec` a command, grading in
a second instance, and a client that polls every three seconds. It is given its model calls for nothing.
Invariant: both do the same commands and the same tests on the same image; CPU is the whole machine's, so run it alone.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
import uuid
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
    work_s = ideal_work_s()
    with serving() as model, agent_server(agent_config="tools", train_concurrency=arguments.concurrency) as server:
        run_ours(server, model)  # the first session of a server finds nothing warm
        alone = [run_ours(server, model) for _ in range(5)]
        many = measure(lambda: run_ours(server, model), arguments.sessions, arguments.concurrency)
    alone_usual = [run_usual() for _ in range(3)]
    many_usual = measure(run_usual, arguments.sessions, arguments.concurrency)
    report(work_s, alone, alone_usual, many, many_usual)
    measure_queue(arguments.queued)


def ideal_work_s() -> float:
    """Seconds of the commands and the tests themselves, in a sandbox that is there already. Median of three."""
    totals = []
    for _ in range(3):
        sandbox = apptainer.start(IMAGE, scratch=Path("/tmp"), env={}, start_timeout_s=60)
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


def run_ours(server: BenchServer, model: ScriptedModel) -> float:
    key = uuid.uuid4().hex
    model.scripts[key] = COMMANDS
    started = time.monotonic()
    request = SessionRequest(
        session_id=key, group_id=key, mode="train", base_url=model.url, api_key=key, task_id=ROW["instance_id"]
    )
    view = server.client.wait(server.client.create(request), timeout_s=600)
    assert view.reward == 1.0 and view.n_calls == len(COMMANDS) + 1, view
    return time.monotonic() - started


def run_usual() -> float:
    """Seconds until a client that asks every POLL_S would know."""
    started = time.monotonic()
    _quietly(sys.executable, "-c", "from agent_server.agents import mini; mini.preload()")
    agent, grader = (f"bench{uuid.uuid4().hex[:12]}" for _ in range(2))
    instance(agent, lambda: [execute(agent, command) for command in (PREPARE, *COMMANDS, SUBMIT)])
    instance(grader, lambda: [execute(grader, command) for command in (PREPARE, FIX, ROW["test_cmd"])])
    took = time.monotonic() - started
    polled = POLL_S * (took // POLL_S + 1)
    time.sleep(polled - took)
    return polled


def instance(name: str, use) -> None:
    program = apptainer.find_apptainer()
    options = [
        "--containall",
        "--cleanenv",
        "--writable-tmpfs",
        "--no-home",
        *(["--no-privs"] if os.geteuid() == 0 else []),
    ]
    _quietly(program, "instance", "start", *options, IMAGE, name)
    try:
        use()
    finally:
        _quietly(program, "instance", "stop", name)


def execute(name: str, command: str) -> None:
    _quietly(apptainer.find_apptainer(), "exec", "--pwd", "/testbed", f"instance://{name}", "bash", "-c", command)


def _quietly(*command: object) -> None:
    # Nowhere, not a pipe: an instance's starter would hold it open.
    nowhere = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([str(part) for part in command], check=True, **nowhere)


def measure(session, n: int, concurrency: int) -> Measured:
    cpu_before, started = machine_cpu_s(), time.monotonic()
    with ThreadPoolExecutor(concurrency) as pool:
        each = list(pool.map(lambda _: session(), range(n)))
    return Measured(each, time.monotonic() - started, machine_cpu_s() - cpu_before)


def machine_cpu_s() -> float:
    """CPU seconds spent on this machine since boot, idle and waiting left out."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def report(work_s: float, alone: list[float], alone_usual: list[float], many: Measured, many_usual: Measured) -> None:
    ours, usual = statistics.median(alone) - work_s, statistics.median(alone_usual) - work_s
    print(f"one session of {len(COMMANDS) + 1} turns; commands and tests themselves take {work_s:.2f} s")
    print(f"{'':34} {'ours':>8} {'usual':>8} {'ratio':>7}  bound")
    print(f"{'overhead of one session, s':34} {ours:8.2f} {usual:8.2f} {usual / ours:7.1f}  1.0, a tenth")
    print(f"{len(many.seconds_each)} sessions at once, in turns of the same number of slots:")
    print(
        f"{'sessions a second':34} {many.per_second:8.2f} {many_usual.per_second:8.2f} {many.per_second / many_usual.per_second:7.1f}  4 times"
    )
    cpu, cpu_usual = many.cpu_s / len(many.seconds_each), many_usual.cpu_s / len(many_usual.seconds_each)
    print(f"{'CPU seconds a session':34} {cpu:8.2f} {cpu_usual:8.2f} {cpu_usual / cpu:7.1f}")


if __name__ == "__main__":
    sys.exit(main())
