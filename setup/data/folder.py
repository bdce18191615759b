"""A folder of task rows: fetching a split into it, and verifying it against its manifest.

Invariant: a killed fetch continues on the next run, and a file under its final name has all of its rows.
"""

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from client.errors import DatasetError, StorageError
from setup.data import hub, manifest, rows, sources
from setup.data.progress import log

MODES = ("train", "eval")


@dataclass(frozen=True, slots=True)
class Request:
    """The requested split and rows. A source without a revision is pinned to the commit of its first fetch."""

    mode: str
    source: sources.Source
    selection: rows.Selection

    def as_dict(self) -> dict[str, Any]:
        ids = sorted(self.selection.ids)
        digest = hashlib.sha256("\n".join(ids).encode()).hexdigest()
        selection = asdict(self.selection) | {
            "ids": {"count": len(ids), "sha256": digest} if ids else None,
            "columns": list(self.selection.columns),
            "where": {name: list(values) for name, values in self.selection.where.items()},
        }
        if filled := selection.pop("filled"):  # manifests of earlier versions have no such key
            selection["filled"] = list(filled)
        source = self.source
        return {"dataset": source.dataset, "split": source.split, "revision": source.revision} | selection


def fetch(folder: Path, request: Request, update: bool = False) -> bool:
    """Write the requested rows to `folder/MODE.parquet` and record them in the manifest; `update` takes the newest
    revision. Returns False if they are there already. Raises DatasetError and its kinds, StorageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {folder}: {error}; choose a writable folder") from error
    with _locked(folder):
        modes = manifest.read(folder)
        entry, source = modes.get(request.mode), request.source
        if entry and entry["request"] == request.as_dict() and not update:
            if not manifest.problems(folder, entry):
                log(
                    f"nothing to do: {folder / entry['file']} has the {entry['rows']} rows of {source}"
                    f" at {entry['revision']}"
                )
                return False
            source = sources.Source(source.dataset, source.split, entry["revision"])
        output = folder / f"{request.mode}.parquet"
        if not entry and output.exists() and not rows.read_origin(output):
            raise DatasetError(
                f"{output} was not written by this program and would be lost; move it away or choose another folder"
            )
        modes[request.mode] = _write(request, source, output)
        manifest.write(folder, modes)
        if common := rows.count_common_rows(*(folder / modes[mode]["file"] for mode in MODES if mode in modes)):
            log(
                f"warning: {common} rows are in train and in eval; separate them with --skip, --limit, --where or --ids"
            )
    return True


def _write(request: Request, source: sources.Source, output: Path) -> dict[str, Any]:
    """Write the rows; returns the manifest's entry."""
    log(f"{request.mode}: listing {source}")
    listing = hub.list_files(source)
    split, paths = sources.select_split(source, sources.list_splits(listing.files, listing.card))
    fetched: list[hub.RemoteFile] = []
    origin = f"{listing.dataset}:{split}@{listing.revision}"
    written = rows.write(
        _fetch_files(listing, paths, fetched),
        request.selection,
        output,
        origin,
        lambda count: log(f"{request.mode}: {count} rows so far"),
    )
    images = "" if written.images is None else f", {written.images} images"
    log(f"{output}: {written.rows} rows, {len(written.columns)} columns{images}, from {origin}")
    return {
        "request": request.as_dict(),
        "revision": listing.revision,
        "split": split,
        "sources": [asdict(file) for file in fetched],
        "file": output.name,
        "sha256": hub.compute_sha256(output),
        "size": output.stat().st_size,
        "rows": written.rows,
        "columns": written.columns,
        "images": written.images,
    }


def _fetch_files(listing: hub.Listing, paths: list[str], fetched: list[hub.RemoteFile]) -> Iterator[Path]:
    """Fetch each file when the iterator reaches it, and append it to `fetched`."""
    for number, path in enumerate(paths, start=1):
        file = listing.files[path]
        cached = min(hub.cached_bytes(listing, file), file.size)
        progress = f" ({_megabytes(cached)} in the cache)" if cached else ""
        log(f"file {number} of {len(paths)}: {path}, {_megabytes(file.size)}{progress}")
        fetched.append(file)
        yield hub.fetch(listing, file)


def check(folder: Path) -> list[str]:
    """Return one message per difference between `folder` and its manifest. Raises DatasetError without a manifest."""
    modes = manifest.read(folder)
    if not modes:
        raise DatasetError(f"{folder} has no {manifest.NAME}; fetch rows into it first")
    problems = [problem for entry in modes.values() for problem in manifest.problems(folder, entry)]
    unknown = [mode for mode in MODES if mode not in modes and (folder / f"{mode}.parquet").exists()]
    return problems + [f"{folder / mode}.parquet is not in {manifest.NAME}" for mode in unknown]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Exclusive use of the folder. Removes the half-written files of a killed run."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log(f"another run is writing to {folder}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in folder.glob(".*.partial"):
            leftover.unlink()
        yield


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
