"""The command `python -m agent_server prepare`: makes the rows' prepared repositories ahead of their first sessions.

The settings are the server's environment variables. It may run beside the server.
Invariant: a row whose repository is there already costs one look; a row that cannot be prepared does not end the run.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from agent_server.config import Settings
from agent_server.grading.datasets.base import Dataset
from agent_server.grading.placement import select_strategy
from agent_server.layers.prepared import can_prepare, prepared_repository
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.catalog import MODES, open_catalog
from agent_server.tasks.task import Task
from agent_server.worker.task_sandbox import start_task_sandbox
from client.errors import ConfigError, StackError
from client.wire import Mode

ALL_PREPARED, SOME_FAILED, BAD_INPUT = 0, 1, 2


def main(argv: Sequence[str]) -> int:
    """Exit code 0 when every row is prepared, 1 when some cannot be, 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m agent_server prepare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ids", nargs="*", help="only these rows")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="rows at once (default: the cores)")
    arguments = parser.parse_args(argv)
    try:
        if arguments.jobs < 1:
            raise ConfigError(f"--jobs must be at least 1; got {arguments.jobs}, raise it")
        return prepare(Settings.from_environment(os.environ), arguments.ids, arguments.jobs)
    except StackError as failure:
        print(f"prepare: {failure}", file=sys.stderr)
        return BAD_INPUT


def prepare(settings: Settings, ids: Sequence[str] | None, jobs: int) -> int:
    """Make what is missing. `ids`: of rows, None for all. Raises ConfigError."""
    catalog = open_catalog(settings)
    rows: list[tuple[Mode, str]] = [(mode, task_id) for mode in MODES for task_id in catalog.ids(mode)]
    if unknown := set(ids or ()) - {task_id for _, task_id in rows}:
        raise ConfigError(f"--ids must be ids of rows in {settings.data_path}; these are not: {', '.join(unknown)}")
    rows = [(mode, task_id) for mode, task_id in rows if ids is None or task_id in ids]

    def work(row: tuple[Mode, str]) -> str:
        try:
            return _prepare_row(settings, *catalog.get_row(*row)[1:])
        except Exception as failure:  # a dataset class of the user's may raise anything
            return str(failure) or type(failure).__name__

    n_failed = 0
    with ThreadPoolExecutor(jobs) as pool:
        for number, ((_, task_id), reason) in enumerate(zip(rows, pool.map(work, rows), strict=True), start=1):
            n_failed += bool(reason)
            print(f"[{number}/{len(rows)}] {task_id}: {reason or 'ok'}", flush=True)
    return SOME_FAILED if n_failed else ALL_PREPARED


def _prepare_row(settings: Settings, dataset: Dataset, task: Task) -> str:
    """Returns why the row is not prepared, or "". Raises StackError."""
    if not can_prepare(settings, task):
        return "each session prepares it: set-up command, unpacked image, AGENT_SERVER_PREPARED_MIB=0, or not root"

    @contextmanager
    def start(layer: Path) -> Iterator[Sandbox]:
        with tempfile.TemporaryDirectory(prefix="prepare-") as scratch:
            sandbox = start_task_sandbox(settings, task, Path(scratch), make_layer=layer)
            try:
                yield sandbox
            finally:
                sandbox.close()

    with prepared_repository(settings, dataset, task, select_strategy(settings.grading_sandbox), start):
        return ""
