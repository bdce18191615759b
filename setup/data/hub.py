"""Files of a dataset repository: listing a revision, and resumable downloads into huggingface-hub's own cache.

The library gives a download a new name in every process, so it starts again after a kill. Here the bytes go to
`BLOB.incomplete` beside the place where the library looks for the blob, and a later run requests only the rest. The
library then serves the blob. HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE and the proxy variables
apply: the library reads them.

huggingface-hub is pinned to one version because these internals of it are used:
- `file_download.http_get`: a download into an open file from a byte offset. The public functions offer no offset.
- `file_download.repo_folder_name` and the cache's layout `FOLDER/blobs/CHECKSUM`: where the library looks for a blob.
- `utils.build_hf_headers`: the token and user agent of the library's own requests.

Invariant: `fetch` returns only files whose checksum matches the hub's (sha256 of large files, git's sha1 of small
ones).
"""

import fcntl
import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

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
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.utils import build_hf_headers
from yaml import YAMLError

from client.errors import DatasetCorrupt, HubUnreachable, StorageError
from setup.data.hub_errors import translated_errors
from setup.data.progress import DownloadProgress, Silent
from setup.data.sources import Source

CARD = "README.md"
CHECKSUM = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """`checksum`: 64 hex digits of sha256, or 40 of git's blob sha1; it is also the blob's name in the cache. None
    if the hub or an old cache has none."""

    path: str
    size: int
    checksum: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a repository at the commit `revision`; `card` is the front matter of its README."""

    dataset: str
    revision: str
    files: dict[str, RemoteFile]
    card: dict[str, Any]


def list_files(source: Source) -> Listing:
    """List a repository on the hub, or with HF_HUB_OFFLINE=1 in the cache. Raises DatasetError and its kinds,
    StorageError."""
    with translated_errors(source.dataset, source.revision):
        try:
            info = HfApi().dataset_info(source.dataset, revision=source.revision, files_metadata=True)
        except OfflineModeIsEnabled:
            return _cached_listing(source)
        folder = Path(_snapshot(source))  # keeps the branch's commit and the list of files for offline runs
        if folder.name != info.sha:
            raise HubUnreachable(f"{source.dataset} changed or was removed while it was listed; run this again")
    files = [
        RemoteFile(item.rfilename, item.size or 0, item.lfs.sha256 if item.lfs else item.blob_id)
        for item in info.siblings or ()
    ]
    return Listing(source.dataset, folder.name, {file.path: file for file in files}, _card(folder))


def _cached_listing(source: Source) -> Listing:
    try:
        tree = get_cached_repo_tree(source.dataset, repo_type="dataset", revision=source.revision)
        folder = Path(_snapshot(source))
    except (CachedRepoTreeNotFoundError, LocalEntryNotFoundError) as error:
        raise HubUnreachable(
            f"HF_HUB_OFFLINE is set and the cache {constants.HF_HUB_CACHE} has no {source}; run once without"
            " HF_HUB_OFFLINE, or set HF_HOME to the folder where it was fetched"
        ) from error
    files = [RemoteFile(item.path, item.size, _checksum_by_name((folder / item.path).resolve())) for item in tree]
    return Listing(source.dataset, folder.name, {file.path: file for file in files}, _card(folder))


def _checksum_by_name(blob: Path) -> str | None:
    """The cache names a blob by its checksum, unless the file system has no links."""
    return blob.name if CHECKSUM.fullmatch(blob.name) else None


def _snapshot(source: Source) -> str:
    return snapshot_download(
        source.dataset, repo_type="dataset", revision=source.revision, allow_patterns=[CARD], tqdm_class=Silent
    )


def _card(folder: Path) -> dict[str, Any]:
    try:
        return (metadata_load(folder / CARD) if (folder / CARD).exists() else None) or {}
    except (ValueError, YAMLError):
        return {}  # the splits then come from the file names


def cached_bytes(listing: Listing, file: RemoteFile) -> int:
    """Return how many bytes of the file an earlier run has left in the cache."""
    blob = _blob(listing, file)
    return next((path.stat().st_size for path in (blob, _partial(blob)) if path.exists()), 0)


def fetch(listing: Listing, file: RemoteFile) -> Path:
    """Return the file in the hub's cache, whole and with the right checksum. Raises DatasetError and its kinds,
    StorageError."""
    with translated_errors(listing.dataset, listing.revision):
        if constants.HF_HUB_OFFLINE:
            return _cached_file(listing, file)
        blob = _blob(listing, file)
        if file.checksum and not (blob.exists() and _checksum(blob, file) == file.checksum):
            _download(listing, file, blob)
        return Path(_pointer(listing, file))


def _cached_file(listing: Listing, file: RemoteFile) -> Path:
    try:
        path = Path(_pointer(listing, file))
    except LocalEntryNotFoundError as error:
        raise HubUnreachable(
            f"HF_HUB_OFFLINE is set and {file.path} of {listing.dataset} is not in the cache; run once without it"
        ) from error
    if file.checksum and (actual := _checksum(path, file)) != file.checksum:
        raise _corrupt(file, actual)
    return path


def _pointer(listing: Listing, file: RemoteFile) -> str:
    return hf_hub_download(listing.dataset, file.path, repo_type="dataset", revision=listing.revision)


def _download(listing: Listing, file: RemoteFile, blob: Path) -> None:
    blob.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(blob)
    with partial.open("a+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        if not partial.exists():
            return  # another run had the lock and has finished the download
        offset = stream.seek(0, os.SEEK_END)
        if offset > 0 and not _complete(listing, file, stream, offset):
            offset = 0  # the leftover was not the beginning of this file
        if offset == 0 and not _complete(listing, file, stream, 0):
            stream.truncate(0)
            raise _corrupt(file, _checksum(partial, file))
        partial.replace(blob)


def _complete(listing: Listing, file: RemoteFile, stream: BinaryIO, offset: int) -> bool:
    """Download the bytes from `offset` on. Returns whether the whole file has the hub's checksum."""
    if offset > file.size:
        return False
    stream.truncate(stream.seek(offset))
    _require_space(Path(stream.name).parent, file.size - offset)
    http_get(
        hf_hub_url(listing.dataset, file.path, repo_type="dataset", revision=listing.revision),
        stream,
        resume_size=offset,
        headers=build_hf_headers(headers={"Accept-Encoding": "identity"}),  # ranges count the uncompressed bytes
        expected_size=file.size,
        displayed_filename=file.path,
        tqdm_class=DownloadProgress,
    )
    stream.flush()
    os.fsync(stream.fileno())
    return _checksum(Path(stream.name), file) == file.checksum


def _blob(listing: Listing, file: RemoteFile) -> Path:
    folder = repo_folder_name(repo_id=listing.dataset, repo_type="dataset")
    return Path(constants.HF_HUB_CACHE) / folder / "blobs" / (file.checksum or file.path)


def _partial(blob: Path) -> Path:
    return blob.with_name(blob.name + ".incomplete")


def _corrupt(file: RemoteFile, actual: str) -> DatasetCorrupt:
    return DatasetCorrupt(
        f"{file.path} has the checksum {actual}, the hub's is {file.checksum}: network or disk changed its bytes;"
        " run this again, and if the error stays check proxy and disk"
    )


def _checksum(path: Path, file: RemoteFile) -> str:
    """Return the file's checksum, of the same kind as `file.checksum`."""
    if file.checksum and len(file.checksum) == 64:
        return compute_sha256(path)
    return _digest(path, hashlib.sha1(b"blob %d\0" % path.stat().st_size))


def compute_sha256(path: Path) -> str:
    return _digest(path, hashlib.sha256())


def _digest(path: Path, digest: Any) -> str:
    with path.open("rb") as stream:
        while chunk := stream.read(READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageError(
            f"the download needs {needed / 1e6:.0f} MB and {folder} has {free / 1e6:.0f} MB free;"
            " free some space there, or set HF_HOME to a folder on a larger disk"
        )
