"""Task rows from a dataset hub into the folder that the agent server reads.

    python -m setup.data fetch FOLDER train r2e-gym-subset --skip 100        writes FOLDER/train.parquet
    python -m setup.data fetch FOLDER eval swe-bench-verified --limit 50     writes FOLDER/eval.parquet
    python -m setup.data check FOLDER                                        is all there as FOLDER/manifest.json says?
    python -m setup.data names                                               the short names of datasets

A dataset is NAME[:SPLIT][@REVISION]; NAME is a short name or owner/name on the hub, REVISION a branch, tag or commit. HF_ENDPOINT, HF_TOKEN,
HF_HOME, HF_HUB_OFFLINE and the proxy variables hold as for every program that uses huggingface-hub.

Invariant: killed at any moment and run again it goes on from where it was, and no file of half the rows ever stands under its name.
"""

import argparse
import fcntl
import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from client.errors import DatasetError, HubUnreachable, StackError, StorageError
from setup.data import hub as data_hub
from setup.data import manifest as data_manifest
from setup.data import rows as data_rows
from setup.data import sources as data_sources

MODES = ("train", "eval")
EXIT_PERSON, EXIT_LATER, EXIT_DISK, EXIT_INTERRUPTED = 78, 75, 74, 130


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for. Without a revision in it the main branch is meant, as it was when it was first fetched."""

    mode: str
    source: data_sources.Source
    selection: data_rows.Selection

    def as_dict(self) -> dict:
        ids = sorted(self.selection.ids)
        told = asdict(self.selection) | {
            "ids": {"count": len(ids), "sha256": hashlib.sha256("\n".join(ids).encode()).hexdigest()} if ids else None
        }
        told |= {
            "columns": list(self.selection.columns),
            "where": {name: list(values) for name, values in self.selection.where.items()},
        }
        return {"dataset": self.source.dataset, "split": self.source.split, "revision": self.source.revision} | told


def fetch(folder: Path, request: Request, update: bool = False) -> bool:
    """False if there was nothing to do. Raises DatasetError and its kinds, StorageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        raise StorageError(f"cannot make {folder}: {refused}; choose a folder that can be written") from refused
    with _alone(folder):
        modes = data_manifest.read(folder)
        entry, source = modes.get(request.mode), request.source
        if entry and entry["request"] == request.as_dict() and not update:
            if not data_manifest.problems(folder, entry):
                say(
                    f"nothing to do: {folder / entry['file']} has the {entry['rows']} rows of {source} at {entry['revision']}"
                )
                return False
            source = data_sources.Source(source.dataset, source.split, entry["revision"])
        output = folder / f"{request.mode}.parquet"
        if not entry and output.exists() and not data_rows.origin(output):
            raise DatasetError(
                f"{output} was not written by this program, and would be lost; move it away or choose another folder"
            )
        say(f"{request.mode}: looking up {source}")
        listing = data_hub.listing(source)
        split, paths = data_sources.choose(source, data_sources.splits_of(listing.files, listing.card))
        used: list[data_hub.RemoteFile] = []
        origin = f"{listing.dataset}:{split}@{listing.revision}"
        written = data_rows.write(
            _fetched(listing, paths, used),
            request.selection,
            output,
            origin,
            lambda rows: say(f"{request.mode}: {rows} rows so far"),
        )
        modes[request.mode] = {
            "request": request.as_dict(),
            "revision": listing.revision,
            "split": split,
            "sources": [asdict(file) for file in used],
            "file": output.name,
            "sha256": data_hub.sha256_of(output),
            "size": output.stat().st_size,
            "rows": written.rows,
            "columns": written.columns,
            "images": written.images,
        }
        data_manifest.write(folder, modes)
        images = "" if written.images is None else f", {written.images} images"
        say(f"{output}: {written.rows} rows, {len(written.columns)} columns{images}, of {origin}")
        if both := data_rows.ids_in_both(*(folder / modes[mode]["file"] for mode in MODES if mode in modes)):
            say(f"note: {both} rows stand in train and in eval; keep them apart with --skip, --limit, --where or --ids")
    return True


def _fetched(listing: data_hub.Listing, paths: list[str], used: list[data_hub.RemoteFile]) -> Iterator[Path]:
    """Each file when it is asked for; notes them in `used`."""
    for number, path in enumerate(paths, start=1):
        file = listing.files[path]
        here = min(data_hub.bytes_here(listing, file), file.size)
        say(
            f"file {number} of {len(paths)}: {path}, {_size(file.size)}"
            + (f", {_size(here)} of it are here" if here else "")
        )
        used.append(file)
        yield data_hub.fetch(listing, file)


def check(folder: Path) -> list[str]:
    """What is wrong in `folder`. Raises DatasetError if nothing was ever fetched into it."""
    modes = data_manifest.read(folder)
    if not modes:
        raise DatasetError(f"{folder} has no {data_manifest.NAME}; fetch something into it first")
    found = [problem for entry in modes.values() for problem in data_manifest.problems(folder, entry)]
    unknown = [mode for mode in MODES if mode not in modes and (folder / f"{mode}.parquet").exists()]
    return found + [f"{folder / mode}.parquet is not in {data_manifest.NAME}" for mode in unknown]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another run works in {folder}; waiting for its end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def say(message: str) -> None:
    print(f"[setup] {message}", file=sys.stderr, flush=True)


def _request(arguments: argparse.Namespace) -> Request:
    where: dict[str, tuple[str, ...]] = {}
    for condition in arguments.where:
        name, equals, value = condition.partition("=")
        if not equals or not name:
            raise DatasetError(f"--where {condition!r} is not COLUMN=VALUE")
        where[name] = (*where.get(name, ()), value)
    ids: frozenset[str] = frozenset()
    if arguments.ids:
        try:
            ids = frozenset(line.strip() for line in arguments.ids.read_text().splitlines() if line.strip())
        except (OSError, ValueError) as unreadable:
            raise DatasetError(
                f"--ids {arguments.ids} cannot be read: {unreadable}; give a text file with one id a line"
            ) from unreadable
        if not ids:
            raise DatasetError(f"--ids {arguments.ids} has no ids; give a text file with one id a line")
    if arguments.skip < 0 or (arguments.limit is not None and arguments.limit < 1):
        raise DatasetError(f"--skip {arguments.skip} must be 0 or more and --limit {arguments.limit} 1 or more")
    columns = tuple(name.strip() for name in arguments.columns.split(",")) if arguments.columns else ()
    return Request(
        arguments.mode,
        data_sources.parse(arguments.dataset),
        data_rows.Selection(columns, where, ids, arguments.skip, arguments.limit),
    )


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
        help="repeatable: one column, any of its values; several columns, all of them",
    )
    one.add_argument(
        "--ids",
        type=Path,
        metavar="FILE",
        help=f"ids of rows, one a line; of the first of the columns {', '.join(data_rows.ID_COLUMNS)}",
    )
    one.add_argument("--skip", type=int, default=0, metavar="N", help="leave out the first N rows")
    one.add_argument("--limit", type=int, metavar="N", help="at most N rows; files past them are not fetched")
    one.add_argument(
        "--update",
        action="store_true",
        help="ask the hub for the newest revision instead of keeping what the manifest names",
    )
    commands.add_parser("check", help="hold the folder against its manifest").add_argument("folder", type=Path)
    commands.add_parser("names", help="the short names of datasets")
    return parser


def main() -> int:
    """Exit codes: 0 all is there, 1 `check` found something, 74 disk, 75 try again later, 78 a person has to do something, 130 interrupted."""
    arguments = _parser().parse_args()
    try:
        if arguments.command == "names":
            print("\n".join(f"{name:20} {dataset}:{split}" for name, (dataset, split) in data_sources.NAMED.items()))
        elif arguments.command == "check":
            found = check(arguments.folder)
            say("\n[setup] ".join(found) or f"{arguments.folder} is as its manifest says")
            return 1 if found else 0
        else:
            fetch(arguments.folder, _request(arguments), arguments.update)
    except StackError as error:
        say(f"cannot go on: {error}")
        return (
            EXIT_LATER
            if isinstance(error, HubUnreachable)
            else EXIT_DISK
            if isinstance(error, StorageError)
            else EXIT_PERSON
        )
    except OSError as refused:
        say(
            f"cannot go on: {arguments.folder} cannot be used ({refused}); make room there, or choose a folder that can be written"
        )
        return EXIT_DISK
    except KeyboardInterrupt:
        say("interrupted; what was fetched is kept, the same command goes on from there")
        return EXIT_INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
