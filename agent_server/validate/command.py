"""`python -m agent_server golden`: is a reward of these rows to be trusted, asked of every one of them.

The gold patch must be graded 1, the repository as it is 0, and each hostile submission 0; a row for which one of these fails, or
changes from one time to the next, is named, and the server leaves it out when it is given the report.
Invariant: the report's lines are appended as they are found, so that an interrupted run goes on where it was.
"""

import argparse
import hashlib
import inspect
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agent_server.grading import repository
from agent_server.grading.base import GradingConfig, grade
from agent_server.grading.datasets.base import REPOSITORY, Dataset
from agent_server.sandboxes import apptainer
from agent_server.sandboxes.base import Sandbox
from agent_server.sandboxes.limits import Limits
from agent_server.tasks.catalog import MODES, Catalog
from agent_server.tasks.task import Task
from agent_server.validate import hostile
from client.errors import ConfigError, SandboxLimitExceeded, StackError

GOLD, EMPTY = "gold", "empty"
MEMORY_BYTES, PROCESSES, DISK_BYTES, CPU_S = 8 << 30, 1024, 4 << 30, 7200.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """One submission to one row, once. `wanted`: what it should be; `error`: why there is no grade."""

    task_id: str
    case: str
    attempt: int
    wanted: bool
    resolved: bool | None
    status: str
    seconds: float
    touched: tuple[str, ...] = ()
    error: str = ""
    log: str = ""
    failing: tuple[str, ...] = ()
    key: str = ""

    @property
    def holds(self) -> bool:
        return self.resolved is self.wanted

    @property
    def fault(self) -> str:
        """Why it does not hold, in a line."""
        if self.error:
            return f"{self.case}: {self.error}"
        last = next((line for line in reversed(self.log.splitlines()) if line.strip()), "")
        failing = (
            f", not passed: {', '.join(self.failing[:3])}{', ...' if len(self.failing) > 3 else ''}"
            if self.failing
            else ""
        )
        return f"{self.case}: {'resolved' if self.resolved else 'not resolved'} ({self.status}){failing}{f'; {last}'[:200] if last else ''}"


def main(argv: list[str]) -> int:
    """Exit code 0 when every row can be trusted, 1 when some cannot, 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m agent_server golden", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tasks",
        type=Path,
        default=os.environ.get("R2E_DATA_PATH"),
        help="parquet or JSONL, or a folder (default: R2E_DATA_PATH)",
    )
    parser.add_argument(
        "--images",
        type=Path,
        default=os.environ.get("R2E_SIF_DIR"),
        help="folder with the images (default: R2E_SIF_DIR)",
    )
    parser.add_argument("--mode", choices=MODES, default="train", help="which file of a folder (default: train)")
    for name, default in (("dataset", "auto"), ("default-image", ""), ("setup-command", "")):
        variable = f"AGENT_SERVER_{name.upper().replace('-', '_')}"
        parser.add_argument(
            f"--{name}", default=os.environ.get(variable, default), help=f"as {variable}, which is its default"
        )
    parser.add_argument("--ids", nargs="*", help="only these rows")
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="K", help="grade everything K times, to find rows that flake"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="rows at once (default: the cores)")
    parser.add_argument("--timeout-s", type=float, default=900.0, help="of one run of the tests")
    parser.add_argument("--network", action="store_true", help="sandboxes have the host's network")
    parser.add_argument(
        "--report",
        type=Path,
        default=Path("golden.json"),
        help="the report (default: golden.json here); FILE.lines holds what was graded so far",
    )
    arguments = parser.parse_args(argv)
    try:
        return golden(arguments)
    except StackError as wrong:
        print(f"golden: {wrong}", file=sys.stderr)
        return 2


def golden(arguments: argparse.Namespace) -> int:
    """Raises ConfigError."""
    if not arguments.tasks or not arguments.images:
        raise ConfigError(
            "--tasks and --images (or R2E_DATA_PATH and R2E_SIF_DIR) say what to grade and where the images are"
        )
    if arguments.repeat < 1 or arguments.jobs < 1:
        raise ConfigError(f"--repeat and --jobs are at least 1; got {arguments.repeat} and {arguments.jobs}")
    for option, path in (("--tasks", arguments.tasks), ("--images", arguments.images)):
        if not Path(path).exists():
            raise ConfigError(f"{option} {path} does not exist")
    catalog = Catalog(arguments.tasks, arguments.dataset, default_image=arguments.default_image)
    for task_id in arguments.ids or ():
        catalog.check(arguments.mode, task_id)
    lines = arguments.report.with_suffix(arguments.report.suffix + ".lines")
    wanted = [task_id for task_id in catalog.ids(arguments.mode) if not arguments.ids or task_id in arguments.ids]
    keys = {task_id: _key(*catalog.get_row(arguments.mode, task_id), arguments) for task_id in wanted}
    verdicts = _sound(_read(lines), keys)
    done = {task_id: {verdict.attempt for verdict in verdicts if verdict.task_id == task_id} for task_id in wanted}
    left = [
        (task_id, attempt) for task_id in wanted for attempt in range(arguments.repeat) if attempt not in done[task_id]
    ]
    print(
        f"golden: {len({task_id for task_id, _ in left})} of {len(wanted)} rows to grade; lines in {lines}", flush=True
    )
    lock, shown = threading.Lock(), Counter()

    def work(item: tuple[str, int]) -> None:
        task_id, attempt = item
        found = [
            replace(verdict, key=keys[task_id])
            for verdict in _verdicts(*catalog.get_row(arguments.mode, task_id), attempt, arguments)
        ]
        with lock:
            with lines.open("a") as file:  # the gold verdict last: it says that the attempt's others are there
                file.writelines(json.dumps(asdict(verdict)) + "\n" for verdict in reversed(found))
            verdicts.extend(found)
            shown["done"] += 1
            faults = [verdict.fault for verdict in found if not verdict.holds]
            print(f"[{shown['done']}/{len(left)}] {task_id}: {'; '.join(faults) or 'ok'}", flush=True)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(work, left))
    return _report(verdicts, arguments.report)


def _verdicts(
    row: dict[str, Any], dataset: Dataset, task: Task, attempt: int, arguments: argparse.Namespace
) -> Iterator[Verdict]:
    """Gold first."""
    try:
        with _sandbox(task, arguments) as sandbox:
            repository.prepare(dataset, task, sandbox)
            dataset.apply_gold(row, task, sandbox)
            gold = repository.collect_diff(sandbox)
            sandbox.run("git reset -q --hard && git clean -fdq", cwd=REPOSITORY, timeout_s=60.0)
            attacks = list(hostile.submissions(dataset, task, sandbox, gold))
    except Exception as broken:  # a class of the user's own may raise anything: the row is named, the others go on
        yield Verdict(task.task_id, GOLD, attempt, True, None, "", 0.0, error=_said(broken))
        return
    for case, patch, wanted in [
        (GOLD, gold, True),
        (EMPTY, "", False),
        *((name, patch, False) for name, patch in attacks),
    ]:
        started = time.monotonic()
        try:
            with _sandbox(task, arguments) as sandbox:
                found = grade(dataset, task, patch, sandbox, GradingConfig(arguments.timeout_s))
        except Exception as broken:
            yield Verdict(
                task.task_id, case, attempt, wanted, None, "", time.monotonic() - started, error=_said(broken)
            )
            continue
        told = (
            {}
            if found.resolved is wanted
            else {"log": found.log, "failing": tuple(test for test, word in found.tests.items() if word != "PASSED")}
        )
        yield Verdict(
            task.task_id,
            case,
            attempt,
            wanted,
            found.resolved,
            found.status,
            time.monotonic() - started,
            found.touched,
            **told,
        )


@contextmanager
def _sandbox(task: Task, arguments: argparse.Namespace) -> Iterator[Sandbox]:
    with tempfile.TemporaryDirectory(prefix="golden-") as scratch:
        sandbox = apptainer.start(
            apptainer.image_path(arguments.images, task.image_name), scratch=Path(scratch), env={}, start_timeout_s=120.0,
            limits=Limits(MEMORY_BYTES, PROCESSES, DISK_BYTES, CPU_S), network=arguments.network,
        )  # fmt: skip
        try:
            if (
                arguments.setup_command
                and (result := sandbox.run(arguments.setup_command, cwd=REPOSITORY, timeout_s=600.0)).returncode != 0
            ):
                raise ConfigError(f"the set-up command ended with {result.returncode}: {result.output[-500:]}")
            yield sandbox
        finally:
            sandbox.close()


def _said(broken: Exception) -> str:
    code = broken.code if isinstance(broken, StackError) else type(broken).__name__
    return f"{code}: {broken}"[:1000] if not isinstance(broken, SandboxLimitExceeded) else f"limit: {broken.limit}"


def _read(lines: Path) -> list[Verdict]:
    """What an earlier run found; its last line may be torn."""
    found = []
    for line in lines.read_text().splitlines() if lines.exists() else ():
        try:
            fields = json.loads(line)
            found.append(Verdict(**fields | {name: tuple(fields[name]) for name in ("touched", "failing")}))
        except (ValueError, TypeError, KeyError):
            continue
    return found


def _key(row: dict[str, Any], dataset: Dataset, task: Task, arguments: argparse.Namespace) -> str:
    """Of all that a verdict depends on: the row, its class, its image, the set-up."""
    image = apptainer.image_path(arguments.images, task.image_name)
    stat = image.stat() if image.exists() else None
    source = inspect.getsource(type(dataset))
    parts = [
        json.dumps(row, default=str, sort_keys=True),
        source,
        stat and (stat.st_size, stat.st_mtime_ns),
        arguments.setup_command,
        arguments.network,
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _sound(verdicts: list[Verdict], keys: Mapping[str, str]) -> list[Verdict]:
    """Those of attempts that are whole, without an error, and about the row as it is now."""
    attempts: dict[tuple[str, int, str], list[Verdict]] = {}
    for verdict in verdicts:
        attempts.setdefault((verdict.task_id, verdict.attempt, verdict.key), []).append(verdict)
    found = []
    for (task_id, _, key), of_attempt in attempts.items():
        is_whole = of_attempt[-1].case == GOLD and not any(verdict.error for verdict in of_attempt)
        if keys.get(task_id) == key and is_whole:
            found += of_attempt
    return found


def _report(verdicts: list[Verdict], path: Path) -> int:
    by_row: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_row.setdefault(verdict.task_id, []).append(verdict)
    failing = {task_id: [verdict for verdict in found if not verdict.holds] for task_id, found in by_row.items()}
    excluded = sorted(task_id for task_id, found in failing.items() if found)
    flaking = sorted(
        task_id for task_id, found in by_row.items()
        if any(len({verdict.resolved for verdict in found if verdict.case == case}) > 1 for case in {verdict.case for verdict in found})
    )  # fmt: skip
    cases: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        cases.setdefault(verdict.case, []).append(verdict)
    table = {
        case: {
            "graded": len(found), "resolved": sum(verdict.resolved is True for verdict in found), "no_grade": sum(verdict.resolved is None for verdict in found),
            "wanted": found[0].wanted, "median_seconds": sorted(verdict.seconds for verdict in found)[len(found) // 2],
        }
        for case, found in cases.items()
    }  # fmt: skip
    body = {
        "rows": len(by_row),
        "cases": table,
        "excluded": excluded,
        "flaking": flaking,
        "failures": [asdict(v) for found in failing.values() for v in found],
    }
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(json.dumps(body, indent=1))
    partial.replace(path)
    print(f"\n{'case':22} {'graded':>7} {'resolved':>9} {'no grade':>9} {'wanted':>7} {'median s':>9}")
    for case, line in table.items():
        share = f"{100 * line['resolved'] / line['graded']:.0f}%"
        print(
            f"{case:22} {line['graded']:7} {share:>9} {line['no_grade']:9} {'100%' if line['wanted'] else '0%':>7} {line['median_seconds']:9.2f}"
        )
    for task_id in excluded:
        for verdict in failing[task_id]:
            print(f"  {task_id}: {verdict.fault}")
    print(
        f"{len(by_row) - len(excluded)} of {len(by_row)} rows can be trusted, {len(flaking)} flake; report in {path}"
        + (f" (AGENT_SERVER_EXCLUDE={path})" if excluded else "")
    )
    return 1 if excluded else 0
