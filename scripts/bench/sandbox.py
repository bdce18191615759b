"""Latency of a sandbox's start, command and stop, of the search for files of other users, and of a worker's start, next
to `apptainer instance` in the same run.

    python -m scripts.bench.sandbox [--image SIF] [--repeat N]

Invariant: the baseline runs on the same image, interleaved with ours, so that noise affects both. Ratios are of
medians.
"""

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from agent_server.config import Settings
from agent_server.executors.local import LocalExecutor
from agent_server.grading.datasets.base import REPOSITORY
from agent_server.sandboxes import apptainer, ownership
from agent_server.store.store import Store
from agent_server.tasks.catalog import open_catalog
from agent_server.worker.job import Job
from client.wire import SessionRequest

ROOT = Path(__file__).resolve().parents[2]
DEMO = Path(os.environ.get("SWE_RL_CACHE", ROOT / ".cache")) / "demo"
COMMANDS = 20  # per sandbox
# Limits start a watchdog, as in a session.
LIMITS = Settings(data_path=Path("/"), sif_dir=Path("/"), work_dir=Path("/")).sandbox_limits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image", type=Path, default=DEMO / "images" / "demo__quickstart__1.sif")
    parser.add_argument("--repeat", type=int, default=15, help="sandboxes of each kind")
    arguments = parser.parse_args()
    ours: dict[str, list[float]] = {}
    baseline: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(arguments.repeat):
            measure_sandbox(arguments.image, Path(scratch), ours)
            measure_instance(arguments.image, f"bench{os.getpid()}x{number}", baseline)
        measure_worker(Path(scratch), arguments.repeat, ours)
    report(ours, baseline)


def timed(times: dict[str, list[float]], name: str, action: Callable):
    started = time.perf_counter()
    result = action()
    times.setdefault(name, []).append((time.perf_counter() - started) * 1e3)
    return result


def measure_sandbox(image: Path, scratch: Path, times: dict[str, list[float]]) -> None:
    sandbox = timed(
        times, "start", lambda: apptainer.start(image, scratch=scratch, env={}, start_timeout_s=60, limits=LIMITS)
    )
    timed(times, "ownership", lambda: ownership.repair(sandbox, [REPOSITORY]))
    for _ in range(COMMANDS):
        timed(times, "command", lambda: sandbox.run("true", cwd="/", timeout_s=10))
        timed(times, "clean command", lambda: sandbox.run_clean("true", cwd="/", timeout_s=10))
    timed(times, "stop", sandbox.close)


def measure_instance(image: Path, name: str, times: dict[str, list[float]]) -> None:
    program = apptainer.find_apptainer()
    # No pipe, because an instance's starter would hold it open.
    silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": True}
    options = [
        "--containall",
        "--cleanenv",
        "--writable-tmpfs",
        "--no-home",
        *(["--no-privs"] if os.geteuid() == 0 else []),
    ]
    timed(times, "start", lambda: subprocess.run([program, "instance", "start", *options, image, name], **silent))
    try:
        for _ in range(COMMANDS // 4):
            timed(
                times,
                "command",
                lambda: subprocess.run([program, "exec", f"instance://{name}", "bash", "-c", "true"], **silent),
            )
    finally:
        timed(times, "stop", lambda: subprocess.run([program, "instance", "stop", name], **silent))


def measure_worker(scratch: Path, repeat: int, times: dict[str, list[float]]) -> None:
    """Time from the request to the fork server until the worker has recorded its pid in the store."""
    settings = Settings(
        data_path=DEMO / "tasks", sif_dir=DEMO / "images", work_dir=scratch / "work", agent_config="text"
    )
    for folder in (settings.scratch_dir, settings.trajectory_dir, settings.log_dir):
        folder.mkdir(parents=True)
    store, executor = Store(settings.work_dir), LocalExecutor(settings)
    store.set_limits(settings.limits)
    catalog = open_catalog(settings)
    task = catalog.get("train", catalog.ids("train")[0])
    executor.start()
    while not executor.ready:
        time.sleep(0.1)
    with socket.socket() as model:  # a model that never responds, so that workers wait
        model.bind(("127.0.0.1", 0))
        model.listen()
        url = f"http://127.0.0.1:{model.getsockname()[1]}"
        for number in range(repeat):
            request = SessionRequest(
                session_id=f"s{number}", group_id="g", mode="train", base_url=url, api_key="k", task_id=task.task_id
            )
            session, _ = store.submit(request, catalog.order(seed=0))
            store.admit(session)

            def start_worker(session: str = session) -> None:
                executor.launch(Job(session, 1, url, "k", "train", task))
                while not store.read("SELECT 1 FROM sessions WHERE id = ? AND worker_pid IS NOT NULL", session):
                    time.sleep(0.0005)

            timed(times, "worker start", start_worker)
            store.request_cancel(session)
            (row,) = store.read("SELECT worker_pid FROM sessions WHERE id = ?", session)
            os.kill(row["worker_pid"], 15)
            while not store.view(session).status.terminal:
                time.sleep(0.01)
    executor.stop()
    store.close()


def report(ours: dict[str, list[float]], baseline: dict[str, list[float]]) -> None:
    limits = {"start": 400, "ownership": 40, "command": 5, "clean command": 5, "stop": 50, "worker start": 50}
    print(f"{'median of ms':14} {'sandbox':>10} {'p95':>10} {'bound':>7} {'instance':>10} {'ratio':>8}")
    for name, values in ours.items():
        median, p95 = statistics.median(values), sorted(values)[int(0.95 * (len(values) - 1))]
        comparison = f"{'-':>10} {'-':>8}"
        if name in baseline:
            baseline_median = statistics.median(baseline[name])
            comparison = f"{baseline_median:10.1f} {baseline_median / median:7.1f}x"
        print(f"{name:14} {median:10.2f} {p95:10.2f} {limits[name]:7} {comparison}")
    loops = subprocess.run(["losetup", "-a"], capture_output=True, text=True).stdout if shutil.which("losetup") else ""
    print(f"loop devices in use afterwards: {len(loops.splitlines())}")


if __name__ == "__main__":
    sys.exit(main())
