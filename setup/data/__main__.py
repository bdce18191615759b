"""Fetches task rows from a dataset hub into the folder that the agent server reads.

    python -m setup.data fetch FOLDER train r2e-gym-subset --skip 100        writes FOLDER/train.parquet
    python -m setup.data fetch FOLDER eval swe-bench-verified --limit 50     writes FOLDER/eval.parquet
    python -m setup.data fetch FOLDER train swe-smith --where problem_statement!=    only rows with a problem statement
    python -m setup.data check FOLDER                                        verifies FOLDER against its manifest.json
    python -m setup.data names                                               lists the short names of datasets

A dataset is NAME[:SPLIT][@REVISION]. NAME is a short name or owner/name on the hub, REVISION a branch, tag or
commit. HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE and the proxy variables apply as in every program that uses
huggingface-hub.

Exit codes: 0 done, 1 `check` found a difference, 74 disk, 75 try again later, 78 a person must act first, 130
interrupted.
"""

import argparse
import sys
from pathlib import Path

from client.errors import DatasetError, HubUnreachable, StackError, StorageError
from setup.data import sources
from setup.data.folder import MODES, Request, check, fetch
from setup.data.progress import log
from setup.data.rows import ID_COLUMNS, Selection

EXIT_CONFIG, EXIT_LATER, EXIT_DISK, EXIT_INTERRUPTED = 78, 75, 74, 130


def main() -> int:
    """Returns the exit code."""
    arguments = _parser().parse_args()
    try:
        if arguments.command == "names":
            print("\n".join(f"{name:20} {dataset}:{split}" for name, (dataset, split) in sources.SHORT_NAMES.items()))
        elif arguments.command == "check":
            problems = check(arguments.folder)
            log("\n[setup] ".join(problems) or f"{arguments.folder} matches its manifest")
            return 1 if problems else 0
        else:
            fetch(arguments.folder, _request(arguments), arguments.update)
    except HubUnreachable as error:
        log(f"error: {error}")
        return EXIT_LATER
    except StorageError as error:
        log(f"error: {error}")
        return EXIT_DISK
    except StackError as error:
        log(f"error: {error}")
        return EXIT_CONFIG
    except OSError as error:
        log(f"error: {arguments.folder} cannot be used ({error}); free some space there, or choose a writable folder")
        return EXIT_DISK
    except KeyboardInterrupt:
        log("interrupted; the same command continues, downloaded bytes are kept")
        return EXIT_INTERRUPTED
    return 0


def _request(arguments: argparse.Namespace) -> Request:
    where: dict[str, tuple[str, ...]] = {}
    filled: tuple[str, ...] = ()
    for condition in arguments.where:
        name, equals, value = condition.partition("=")
        is_filled = name.endswith("!") and not value
        if not equals or not name.removesuffix("!") or (name.endswith("!") and value):
            raise DatasetError(f"--where {condition!r} is neither COLUMN=VALUE nor COLUMN!= (not empty)")
        if is_filled:
            filled = (*filled, name.removesuffix("!"))
        else:
            where[name] = (*where.get(name, ()), value)
    if arguments.skip < 0 or (arguments.limit is not None and arguments.limit < 1):
        raise DatasetError(f"--skip {arguments.skip} must be at least 0 and --limit {arguments.limit} at least 1")
    columns = tuple(name.strip() for name in arguments.columns.split(",")) if arguments.columns else ()
    ids = _read_ids(arguments.ids) if arguments.ids else frozenset()
    selection = Selection(columns, where, filled, ids, arguments.skip, arguments.limit)
    return Request(arguments.mode, sources.parse(arguments.dataset), selection)


def _read_ids(path: Path) -> frozenset[str]:
    try:
        ids = frozenset(line.strip() for line in path.read_text().splitlines() if line.strip())
    except (OSError, ValueError) as error:
        raise DatasetError(f"--ids {path} cannot be read: {error}; name a text file with one id per line") from error
    if not ids:
        raise DatasetError(f"--ids {path} has no ids; name a text file with one id per line")
    return ids


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m setup.data", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser(
        "fetch",
        help="fetch a split and write its rows",
        description="Selections apply in this order: --where and --ids, --skip, --limit.",
    )
    one.add_argument("folder", type=Path)
    one.add_argument("mode", choices=MODES)
    one.add_argument("dataset", help="NAME[:SPLIT][@REVISION]")
    one.add_argument("--columns", help="comma-separated; default all")
    one.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help="repeatable; values of one column are alternatives, different columns must all match;"
        " COLUMN!= selects the rows in which that column is not empty",
    )
    one.add_argument(
        "--ids",
        type=Path,
        metavar="FILE",
        help=f"file of row ids, one per line; the id is the first existing column of {', '.join(ID_COLUMNS)}",
    )
    one.add_argument("--skip", type=int, default=0, metavar="N", help="leave out the first N rows")
    one.add_argument("--limit", type=int, metavar="N", help="at most N rows; later files are not fetched")
    one.add_argument(
        "--update", action="store_true", help="take the hub's newest revision instead of the manifest's revision"
    )
    commands.add_parser("check", help="compare the folder with its manifest").add_argument("folder", type=Path)
    commands.add_parser("names", help="list the short names of datasets")
    return parser


if __name__ == "__main__":
    sys.exit(main())
