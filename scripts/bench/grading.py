"""Overhead of grading a submission beyond its tests, fresh sandbox included, next to a baseline in the same run.

    python -m scripts.bench.grading [--repeat 20]

The baseline: `apptainer instance start`, one `apptainer exec` each for the bug, the patch and the tests, `instance
stop`. Invariant: both apply the same patch to the same image and run the same tests.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from agent_server.grading import changes, repository
from agent_server.grading.datasets.base import REPOSITORY
from agent_server.grading.grade import GradingConfig, grade
from agent_server.grading.placement import FreshSandbox
from agent_server.sandboxes import apptainer
from agent_server.sandboxes.limits import Limits
from agent_server.tasks.catalog import Catalog
from scripts.bench.agent_server import FIX, IMAGE, PREPARE, execute, instance
from scripts.bench.serving import DEMO

LIMITS = Limits(memory_bytes=4 << 30, processes=512, disk_bytes=2 << 30, cpu_s=3600.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=20)
    repeat = parser.parse_args().repeat
    catalog = Catalog(DEMO / "tasks")
    row, dataset, task = catalog.get_row("train", catalog.ids("train")[0])
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)

        def sandbox():
            return apptainer.start(IMAGE, scratch=scratch, env={}, start_timeout_s=60, limits=LIMITS)

        agents = sandbox()
        repository.prepare(dataset, task, agents)
        dataset.apply_gold(row, task, agents)
        gold = changes.collect_diff(agents)
        agents.close()

        def ours() -> None:
            fresh = sandbox()
            try:
                assert grade(dataset, task, gold, fresh, FreshSandbox(), GradingConfig(60.0)).resolved
            finally:
                fresh.close()

        def baseline() -> None:
            instance(
                "benchgrading",
                lambda: [execute("benchgrading", command) for command in (PREPARE, FIX, row["test_cmd"])],
            )

        warm = sandbox()
        tests = median_s(repeat, lambda: warm.run(row["test_cmd"], cwd=REPOSITORY, timeout_s=60))
        warm.close()
        ours_s, baseline_s = median_s(repeat, ours) - tests, median_s(max(3, repeat // 4), baseline) - tests
    print(f"the tests alone: {tests * 1e3:.0f} ms; overhead, medians of {repeat}:")
    print(f"{'':20} {'ours':>8} {'baseline':>8} {'ratio':>7}  bound")
    print(f"{'one grading, ms':20} {ours_s * 1e3:8.0f} {baseline_s * 1e3:8.0f} {baseline_s / ours_s:7.1f}  500")


def median_s(repeat: int, action: Callable[[], object]) -> float:
    """Return the median seconds of `repeat` calls."""
    seconds = []
    for _ in range(repeat):
        started = time.monotonic()
        action()
        seconds.append(time.monotonic() - started)
    return statistics.median(seconds)


if __name__ == "__main__":
    sys.exit(main())
