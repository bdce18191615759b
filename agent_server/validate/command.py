"""The command `python -m agent_server validate`: certifies that the rewards of rows can be trusted.

The gold patch must be graded 1, the repository as it is 0, and each hostile submission 0. A row for which one of these
fails, or changes between repeats, is named in the report; the server excludes it when it is given the report
(AGENT_SERVER_EXCLUDE). Sandboxes are those of a server with the same environment variables.
Invariant: an interrupted run continues where it was, from the lines file beside the report.
"""

import argparse
import os
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from agent_server.config import Settings, variable
from agent_server.sandboxes import apptainer
from agent_server.tasks import unusable
from agent_server.tasks.catalog import MODES, Catalog, open_catalog
from agent_server.validate import hostile
from agent_server.validate.certification import Conditions, certify
from agent_server.validate.report import summarize
from agent_server.validate.verdicts import append_repeat, digest, read_usable
from client.errors import ConfigError, StackError
from client.wire import Mode

OPTIONS = {
    "data_path": "--tasks",
    "sif_dir": "--images",
    "dataset": "--dataset",
    "default_image": "--default-image",
    "setup_command": "--setup-command",
    "unusable_rows": "--unusable-rows",
}  # settings of the server that have an option here
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
    settings = _settings(arguments)
    catalog = open_catalog(settings.model_copy(update={"exclude": None}))
    left_out = arguments.report.with_suffix(arguments.report.suffix + ".unusable")
    unusable.write(catalog.unusable, left_out)
    if catalog.unusable:
        print(f"validate: {len(catalog.unusable)} rows are left out; {left_out} has the reasons", flush=True)
    for task_id in arguments.ids or ():
        catalog.check(arguments.mode, task_id)
    conditions = Conditions(settings, arguments.attacks)
    lines = arguments.report.with_suffix(arguments.report.suffix + ".lines")
    task_ids = [task_id for task_id in catalog.ids(arguments.mode) if not arguments.ids or task_id in arguments.ids]
    keys = {task_id: _key(catalog, arguments.mode, task_id, conditions) for task_id in task_ids}
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
        found = [replace(verdict, key=keys[task_id]) for verdict in certify(row, dataset, task, repeat, conditions)]
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


def _settings(arguments: argparse.Namespace) -> Settings:
    """The server's settings from the environment, with the options in place of their variables. Raises ConfigError."""
    if arguments.repeat < 1 or arguments.jobs < 1:
        raise ConfigError(
            f"--repeat and --jobs must be at least 1; got {arguments.repeat} and {arguments.jobs}, raise them"
        )
    options = {variable(field): str(value) for field in OPTIONS if (value := getattr(arguments, field)) is not None}
    if arguments.network:
        options[variable("sandbox_network")] = "1"
    unused = {variable("work_dir"): tempfile.gettempdir()}  # required of a server; nothing is written to it here
    settings = Settings.from_environment(unused | dict(os.environ) | options)
    if arguments.timeout_s is None:
        return settings
    # Not checked against a session's other timeouts: nothing but grading runs here.
    return settings.model_copy(update={"grading_timeout_s": arguments.timeout_s})


def _key(catalog: Catalog, mode: Mode, task_id: str, conditions: Conditions) -> str:
    row, dataset, task = catalog.get_row(mode, task_id)
    settings = conditions.settings
    image = apptainer.image_path(settings.sif_dir, task.image_name)
    sandbox = (
        settings.setup_command,
        settings.sandbox_network,
        settings.sandbox_allowed_networks,
        settings.binds,
        settings.sandbox_limits,
        settings.threads_per_sandbox,
    )
    grading = (settings.grading_timeout_s, settings.protected_paths, settings.canary)
    attacks = (hostile.fingerprint(), tuple(conditions.attacks))  # a new attack must meet every row
    return digest(row, dataset, image, *attacks, *sandbox, *grading)


def _parser(report: Path) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m agent_server validate",
        description=f"{__doc__}\nThe former name of this command, `golden`, works for one more release.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    for field, option in OPTIONS.items():
        help_text = f"{Settings.model_fields[field].description} (default: {variable(field)})"
        add(option, dest=field, metavar="VALUE", help=help_text)
    add("--mode", choices=MODES, default="train", help="which file of a folder (default: train)")
    add("--ids", nargs="*", help="only these rows")
    add("--repeat", type=int, default=1, metavar="K", help="grade everything K times, to find rows that flake")
    add("--jobs", type=int, default=os.cpu_count(), help="rows at once (default: the cores)")
    add("--timeout-s", type=float, help="of one run of the tests (default: AGENT_SERVER_GRADING_TIMEOUT_S)")
    attacks_help = "only these hostile submissions (default: all): " + ", ".join(hostile.NAMES)
    add("--attacks", nargs="*", choices=hostile.NAMES, default=hostile.NAMES, metavar="NAME", help=attacks_help)
    add("--network", action="store_true", help="sandboxes reach public addresses (AGENT_SERVER_SANDBOX_NETWORK=1)")
    report_help = (
        f"the report (default: {report} here); FILE.lines holds what was graded so far, FILE.unusable the rows that"
        " were left out"
    )
    add("--report", type=Path, default=report, help=report_help)
    return parser
