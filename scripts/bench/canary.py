"""Seconds of grading with and without the canary run, next to the row's tests alone in the same run.

    python -m scripts.bench.canary [--tasks ROWS --images FOLDER] [--ids ID ...] [--repeat 10]

The tests alone: the row's script in a sandbox that has the gold patch, without reporter, patch and snapshots.
Invariant: the three are measured in turn, so that a busy machine slows all of them.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from agent_server.grading import canary, changes, repository
from agent_server.grading.application import Application, prepare
from agent_server.grading.datasets.base import REPOSITORY
from agent_server.grading.grade import GradingConfig, grade
from agent_server.grading.placement import FreshSandbox
from agent_server.sandboxes import apptainer
from agent_server.sandboxes.base import Sandbox
from agent_server.sandboxes.limits import Limits
from agent_server.tasks.catalog import Catalog
from scripts.bench.serving import DEMO

LIMITS = Limits(memory_bytes=6 << 30, processes=512, disk_bytes=4 << 30, cpu_s=3600.0)
TIMEOUT_S = 900.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=Path, default=DEMO / "tasks")
    parser.add_argument("--images", type=Path, default=DEMO / "images")
    parser.add_argument("--ids", nargs="*")
    parser.add_argument("--repeat", type=int, default=10)
    arguments = parser.parse_args()
    catalog = Catalog(arguments.tasks)
    head = f"{'tests alone, s':>15} {'grading beyond, ms':>19} {'canary run, s':>14} {'canary / tests':>15}"
    print(f"medians of {arguments.repeat}; bounds: 500 ms, and 1.5\n{'row':40} {head}")
    for task_id in arguments.ids or catalog.ids("train")[:3]:
        tests_s, grading_s, canary_s = _measure(catalog, task_id, arguments.images, arguments.repeat)
        beyond_ms = (grading_s - tests_s) * 1e3
        print(f"{task_id:40} {tests_s:15.2f} {beyond_ms:19.0f} {canary_s:14.2f} {canary_s / tests_s:15.2f}", flush=True)


def _measure(catalog: Catalog, task_id: str, images: Path, repeat: int) -> tuple[float, float, float]:
    """Median seconds of the tests alone, of grading, and of the canary run, for the row's gold patch."""
    row, dataset, task = catalog.get_row("train", task_id)
    config = GradingConfig(TIMEOUT_S, canary=True)
    with tempfile.TemporaryDirectory() as folder:

        def in_sandbox(action: Callable[[Sandbox], float]) -> float:
            sandbox = apptainer.start(
                apptainer.image_path(images, task.image_name),
                scratch=Path(folder),
                env={},
                start_timeout_s=60,
                limits=LIMITS,
            )
            try:
                return action(sandbox)
            finally:
                sandbox.close()

        def make_gold(sandbox: Sandbox) -> float:
            nonlocal gold
            repository.prepare(dataset, task, sandbox)
            dataset.apply_gold(row, task, sandbox)
            gold = changes.collect_diff(sandbox)
            return 0.0

        def tests_alone(sandbox: Sandbox) -> float:
            prepare(dataset, task, gold, sandbox, FreshSandbox(), Application({}, config.protected_paths))
            sandbox.write_file("/tmp/tests.sh", dataset.test_script(task))
            return seconds_of(
                lambda: sandbox.run("bash /tmp/tests.sh >/tmp/tests.log 2>&1", cwd=REPOSITORY, timeout_s=TIMEOUT_S)
            )

        def graded(sandbox: Sandbox) -> float:
            nonlocal found
            found = grade(dataset, task, gold, sandbox, FreshSandbox(), config)
            assert found.resolved, found
            return 0.0

        def confirmed(sandbox: Sandbox) -> float:
            assert canary.confirm(dataset, task, gold, sandbox, FreshSandbox(), config, found).resolved
            return 0.0

        gold, found = "", None
        in_sandbox(make_gold)
        seconds: list[tuple[float, float, float]] = []
        for _ in range(repeat):
            alone = in_sandbox(tests_alone)
            seconds.append((alone, seconds_of(lambda: in_sandbox(graded)), seconds_of(lambda: in_sandbox(confirmed))))
    tests_s, grading_s, canary_s = (statistics.median(values) for values in zip(*seconds, strict=True))
    return tests_s, grading_s, canary_s


def seconds_of(action: Callable[[], object]) -> float:
    """Wall seconds of a call."""
    started = time.monotonic()
    action()
    return time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main())
