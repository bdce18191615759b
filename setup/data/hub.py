"""Files of a dataset repository: what there is at a revision, and each file fetched into huggingface-hub's own cache.

The library names a download anew in every process and so begins again after a kill. Here the bytes come into `BLOB.incomplete` beside
the place where the library looks for the blob, and a later run asks for the rest of them only. What is found there is the library's to serve.
HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE and the usual proxy variables hold: the library reads them.

Invariant: a file that is handed out has the checksum that the hub tells (sha256 of large files, git's sha1 of small ones).
"""

import errno
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from huggingface_hub import (
    HfApi,
    constants,
    get_cached_repo_tree,
    hf_hub_download,
    hf_hub_url,
    metadata_load,
    snapshot_download,
)
from huggingface_hub.errors import (
    CachedRepoTreeNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # the base of all that its HTTP client raises
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.utils import build_hf_headers
from yaml import YAMLError

from client.errors import DatasetCorrupt, DatasetError, DatasetGated, HubUnreachable, StorageError
from setup.data.progress import Progress, Silent
from setup.data.sources import Source

CARD = "README.md"
CHECKSUM = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """`checksum`: 64 hex digits of sha256, or the 40 of git's blob sha1, which is also the name of the blob in the cache; None where
    the hub or an old cache tells none."""

    path: str
    size: int
    checksum: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a repository at the commit `revision`; `card` is the front matter of its README."""

    dataset: str
    revision: str
    files: dict[str, RemoteFile]
    card: dict


def listing(source: Source) -> Listing:
    """One look at the hub, or with HF_HUB_OFFLINE=1 at the cache. Raises DatasetError and its kinds, StorageError."""
    with _told(source.dataset, source.revision):
        try:
            info = HfApi().dataset_info(source.dataset, revision=source.revision, files_metadata=True)
        except OfflineModeIsEnabled:
            return _cached_listing(source)
        folder = Path(_snapshot(source))  # keeps the branch's commit and the list of files for offline runs
        if folder.name != info.sha:
            raise HubUnreachable(f"{source.dataset} changed or went away while it was listed; run this again")
    files = [
        RemoteFile(item.rfilename, item.size or 0, item.lfs.sha256 if item.lfs else item.blob_id)
        for item in info.siblings or ()
    ]
    return Listing(source.dataset, folder.name, {file.path: file for file in files}, _card(folder))


def _cached_listing(source: Source) -> Listing:
    try:
        tree = get_cached_repo_tree(source.dataset, repo_type="dataset", revision=source.revision)
        folder = Path(_snapshot(source))
    except (CachedRepoTreeNotFoundError, LocalEntryNotFoundError) as unknown:
        raise HubUnreachable(
            f"HF_HUB_OFFLINE is set and the cache {constants.HF_HUB_CACHE} does not know {source}: run once without HF_HUB_OFFLINE,"
            " or set HF_HOME to the folder where it was fetched"
        ) from unknown
    files = [RemoteFile(item.path, item.size, _checksum_by_name((folder / item.path).resolve())) for item in tree]
    return Listing(source.dataset, folder.name, {file.path: file for file in files}, _card(folder))


def _checksum_by_name(blob: Path) -> str | None:
    """The cache names a blob by its checksum, unless it could make no links."""
    return blob.name if CHECKSUM.fullmatch(blob.name) else None


def _snapshot(source: Source) -> str:
    return snapshot_download(
        source.dataset, repo_type="dataset", revision=source.revision, allow_patterns=[CARD], tqdm_class=Silent
    )


def _card(folder: Path) -> dict:
    try:
        return (metadata_load(folder / CARD) if (folder / CARD).exists() else None) or {}
    except (ValueError, YAMLError):
        return {}  # the files' names then tell the splits


def bytes_here(listing: Listing, file: RemoteFile) -> int:
    """How much of the file an earlier run has left in the cache."""
    blob = _blob(listing, file)
    return next((path.stat().st_size for path in (blob, _partial(blob)) if path.exists()), 0)


def fetch(listing: Listing, file: RemoteFile) -> Path:
    """The file, whole and with the right checksum, in the hub's cache. Raises DatasetError and its kinds, StorageError."""
    with _told(listing.dataset, listing.revision):
        if constants.HF_HUB_OFFLINE:
            try:
                path = Path(_pointer(listing, file))
            except LocalEntryNotFoundError as unknown:
                raise HubUnreachable(
                    f"HF_HUB_OFFLINE is set and {file.path} of {listing.dataset} is not in the cache; run once without it"
                ) from unknown
            if file.checksum and (found := _checksum(path, file)) != file.checksum:
                raise _corrupt(file, found)
            return path
        blob = _blob(listing, file)
        if file.checksum and not (blob.exists() and _checksum(blob, file) == file.checksum):
            _download(listing, file, blob)
        return Path(_pointer(listing, file))


def _pointer(listing: Listing, file: RemoteFile) -> str:
    return hf_hub_download(listing.dataset, file.path, repo_type="dataset", revision=listing.revision)


def _download(listing: Listing, file: RemoteFile, blob: Path) -> None:
    blob.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(blob)
    with partial.open("a+b") as incomplete:
        fcntl.flock(incomplete, fcntl.LOCK_EX)
        if not partial.exists():
            return  # another run had the lock, and has fetched it meanwhile
        have = incomplete.seek(0, os.SEEK_END)
        if have > 0 and not _complete(listing, file, incomplete, have):
            have = 0  # what was left here was not the beginning of this file
        if have == 0 and not _complete(listing, file, incomplete, 0):
            incomplete.truncate(0)
            raise _corrupt(file, _checksum(partial, file))
        partial.replace(blob)


def _complete(listing: Listing, file: RemoteFile, incomplete: BinaryIO, have: int) -> bool:
    """Fetch what comes after the first `have` bytes. Is the whole what the hub tells?"""
    if have > file.size:
        return False
    incomplete.truncate(incomplete.seek(have))
    _check_room(Path(incomplete.name).parent, file.size - have)
    http_get(
        hf_hub_url(listing.dataset, file.path, repo_type="dataset", revision=listing.revision),
        incomplete,
        resume_size=have,
        headers=build_hf_headers(headers={"Accept-Encoding": "identity"}),  # ranges count the file's own bytes
        expected_size=file.size,
        displayed_filename=file.path,
        tqdm_class=Progress,
    )
    incomplete.flush()
    os.fsync(incomplete.fileno())
    return _checksum(Path(incomplete.name), file) == file.checksum


def _blob(listing: Listing, file: RemoteFile) -> Path:
    return (
        Path(constants.HF_HUB_CACHE)
        / repo_folder_name(repo_id=listing.dataset, repo_type="dataset")
        / "blobs"
        / (file.checksum or file.path)
    )


def _partial(blob: Path) -> Path:
    return blob.with_name(blob.name + ".incomplete")


def _corrupt(file: RemoteFile, found: str) -> DatasetCorrupt:
    return DatasetCorrupt(
        f"{file.path} has the checksum {found} and the hub tells {file.checksum}: its bytes were changed on the way or on the disk;"
        " run this again, and if it stays so look at proxy and disk"
    )


def _checksum(path: Path, file: RemoteFile) -> str:
    """Of the kind that the hub tells."""
    return (
        sha256_of(path)
        if file.checksum and len(file.checksum) == 64
        else _digest(path, hashlib.sha1(b"blob %d\0" % path.stat().st_size))
    )


def sha256_of(path: Path) -> str:
    return _digest(path, hashlib.sha256())


def _digest(path: Path, digest) -> str:
    with path.open("rb") as stream:
        while chunk := stream.read(READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _check_room(folder: Path, wanted: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise StorageError(
            f"{folder} has {free / 1e6:.0f} MB free and {wanted / 1e6:.0f} MB are to come;"
            " free some space there, or set HF_HOME to a folder on a larger disk"
        )


@contextmanager
def _told(dataset: str, revision: str | None) -> Iterator[None]:
    """The library's failures in our words. The order matters: several of them are kinds of OSError, and gated is a kind of not found."""
    try:
        yield
    except GatedRepoError as gated:
        raise DatasetGated(
            f"{dataset} is gated: accept its conditions at {constants.ENDPOINT}/datasets/{dataset},"
            " then set HF_TOKEN to a token of that account that may read it"
        ) from gated
    except RepositoryNotFoundError as missing:
        raise DatasetError(
            f"there is no dataset {dataset} at {constants.ENDPOINT}, or it is private;"
            " look at the spelling, or set HF_TOKEN to a token that may read it"
        ) from missing
    except RevisionNotFoundError as missing:
        raise DatasetError(
            f"{dataset} has no revision {revision!r}; give a branch, a tag or a commit of it after @"
        ) from missing
    except HFValidationError as wrong:
        raise DatasetError(f"{dataset!r} is no name that the hub allows: {wrong}") from wrong
    except HfHubHTTPError as refused:
        status = refused.response.status_code
        if status in (401, 403):
            raise DatasetGated(
                f"{constants.ENDPOINT} refuses {dataset} (HTTP {status}): it has no such dataset, or wants a token;"
                " look at the spelling, or set HF_TOKEN to one that may read it"
            ) from refused
        raise HubUnreachable(
            f"{constants.ENDPOINT} answered HTTP {status} for {dataset}; run this again later, what is here is kept"
        ) from refused
    except (HTTPError, LocalEntryNotFoundError) as silent:
        raise HubUnreachable(
            f"{constants.ENDPOINT} cannot be reached ({silent}): look at HF_ENDPOINT and the proxy settings and run this again, what is here is kept;"
            " HF_HUB_OFFLINE=1 takes what the cache has"
        ) from silent
    except OSError as refused:
        if refused.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(
                f"the disk of {constants.HF_HUB_CACHE} is full; free some space there, or set HF_HOME to a folder on a larger disk"
            ) from refused
        if refused.errno is not None:
            raise StorageError(
                f"cannot write to {constants.HF_HUB_CACHE}: {refused}; set HF_HOME to a folder that can be written"
            ) from refused
        raise HubUnreachable(
            f"{dataset} came incomplete ({refused}); run this again, what is here is kept"
        ) from refused
