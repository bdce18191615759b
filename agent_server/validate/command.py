"""The command `python -m agent_server validate`: certifies that the rewards of rows can be trusted.

The gold patch must be graded 1, the repository as it is 0, and each hostile submission 0. A row for which one of these
fails, or changes between repeats, is named in the report; the server excludes it when it is given the report
(AGENT_SERVER_EXCLUDE).
Invariant: an interrupted run continues where it was, from the lines file beside the report.
"""

import argparse
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from agent_server.sandboxes import apptainer
from agent_server.tasks.catalog import MODES, Catalog
from agent_server.validate.certification import SandboxConfig, certify
from agent_server.validate.report import summarize
from agent_server.validate.verdicts import append_repeat, digest, read_usable
from client.errors import ConfigError, StackError
from client.wire import Mode

ALL_TRUSTED, SOME_EXCLUDED, BAD_INPUT = 0, 1, 2


def main(argv: list[str], name: str = "validate") -> int:
    """Exit code 0 when every row can be trusted, 1 when some cannot, 2 for bad input.

    `name`: of the command as it was called. The default report is NAME.json, as callers of the former name expect.
    """
    arguments = _parser(Path(f"{name}.json")).parse_args(argv)
    try:
        return validate(arguments)
    except StackError as failure:
        print(f"validate: {failure}", file=sys.stderr)
        return BAD_INPUT


def validate(arguments: argparse.Namespace) -> int:
    """Certify the rows and write the report. Raises ConfigError."""
    _check(arguments)
    catalog = Catalog(arguments.tasks, arguments.dataset, default_image=arguments.default_image)
    for task_id in arguments.ids or ():
        catalog.check(arguments.mode, task_id)
    config = SandboxConfig(arguments.images, arguments.setup_command, arguments.network, arguments.timeout_s)
    lines = arguments.report.with_suffix(arguments.report.suffix + ".lines")
    task_ids = [task_id for task_id in catalog.ids(arguments.mode) if not arguments.ids or task_id in arguments.ids]
    keys = {task_id: _key(catalog, arguments.mode, task_id, config) for task_id in task_ids}
    verdicts = read_usable(lines, keys)
    graded = {(verdict.task_id, verdict.repeat) for verdict in verdicts}
    repeats = [(task_id, repeat) for task_id in task_ids for repeat in range(arguments.repeat)]
    missing = [repeat for repeat in repeats if repeat not in graded]
    print(
        f"validate: {len({task_id for task_id, _ in missing})} of {len(task_ids)} rows to grade; lines in {lines}",
        flush=True,
    )
    lock = threading.Lock()
    n_done = 0

    def work(item: tuple[str, int]) -> None:
        nonlocal n_done
        task_id, repeat = item
        row, dataset, task = catalog.get_row(arguments.mode, task_id)
        found = [replace(verdict, key=keys[task_id]) for verdict in certify(row, dataset, task, repeat, config)]
        reasons = [verdict.reason for verdict in found if not verdict.as_expected]
        with lock:
            append_repeat(lines, found)
            verdicts.extend(found)
            n_done += 1
            print(f"[{n_done}/{len(missing)}] {task_id}: {'; '.join(reasons) or 'ok'}", flush=True)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(work, missing))
    report = summarize(verdicts)
    report.write(arguments.report)
    report.show(arguments.report)
    return SOME_EXCLUDED if report.excluded else ALL_TRUSTED


def _check(arguments: argparse.Namespace) -> None:
    """Raises ConfigError."""
    if not arguments.tasks or not arguments.images:
        raise ConfigError(
            "--tasks and --images (or R2E_DATA_PATH and R2E_SIF_DIR) must name the rows and the folder of their images"
        )
    if arguments.repeat < 1 or arguments.jobs < 1:
        raise ConfigError(
            f"--repeat and --jobs must be at least 1; got {arguments.repeat} and {arguments.jobs}, raise them"
        )
    for option, path in (("--tasks", arguments.tasks), ("--images", arguments.images)):
        if not Path(path).exists():
            raise ConfigError(f"{option} {path} does not exist; correct the path")


def _key(catalog: Catalog, mode: Mode, task_id: str, config: SandboxConfig) -> str:
    row, dataset, task = catalog.get_row(mode, task_id)
    image = apptainer.image_path(config.images, task.image_name)
    return digest(row, dataset, image, config.setup_command, config.network)


def _parser(report: Path) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m agent_server validate",
        description=f"{__doc__}\nThe former name of this command, `golden`, works for one more release.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    data_path, sif_dir = os.environ.get("R2E_DATA_PATH"), os.environ.get("R2E_SIF_DIR")
    add("--tasks", type=Path, default=data_path, help="parquet or JSONL, or a folder (default: R2E_DATA_PATH)")
    add("--images", type=Path, default=sif_dir, help="folder with the images (default: R2E_SIF_DIR)")
    add("--mode", choices=MODES, default="train", help="which file of a folder (default: train)")
    for name, default in (("dataset", "auto"), ("default-image", ""), ("setup-command", "")):
        variable = f"AGENT_SERVER_{name.upper().replace('-', '_')}"
        add(f"--{name}", default=os.environ.get(variable, default), help=f"as {variable}, which is its default")
    add("--ids", nargs="*", help="only these rows")
    add("--repeat", type=int, default=1, metavar="K", help="grade everything K times, to find rows that flake")
    add("--jobs", type=int, default=os.cpu_count(), help="rows at once (default: the cores)")
    add("--timeout-s", type=float, default=900.0, help="of one run of the tests")
    add("--network", action="store_true", help="sandboxes have the host's network")
    report_help = f"the report (default: {report} here); FILE.lines holds what was graded so far"
    add("--report", type=Path, default=report, help=report_help)
    return parser
