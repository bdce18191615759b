"""Translates huggingface-hub's exceptions into this project's errors.

Invariant: no exception of the library or of the file system leaves `translated_errors` untranslated.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # base of all exceptions of its HTTP client
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from client.errors import DatasetError, DatasetGated, HubUnreachable, StackError, StorageError


@contextmanager
def translated_errors(dataset: str, revision: str | None) -> Iterator[None]:
    """Raises DatasetError and its kinds, StorageError."""
    try:
        yield
    except (OSError, HTTPError, HFValidationError) as error:
        raise _translate(error, dataset, revision) from error


def _translate(error: Exception, dataset: str, revision: str | None) -> StackError:
    """The order matters: some of the library's classes are kinds of OSError, and gated is a kind of not found."""
    endpoint, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    match error:
        case GatedRepoError():
            return DatasetGated(
                f"{dataset} is gated; accept its conditions at {endpoint}/datasets/{dataset},"
                " then set HF_TOKEN to a token of that account with read access"
            )
        case RepositoryNotFoundError():
            return DatasetError(
                f"{endpoint} has no dataset {dataset}, or it is private;"
                " check the spelling, or set HF_TOKEN to a token with read access"
            )
        case RevisionNotFoundError():
            return DatasetError(f"{dataset} has no revision {revision!r}; put a branch, tag or commit of it after @")
        case HFValidationError():
            return DatasetError(f"{dataset!r} is no valid dataset name ({error}); use owner/name")
        case HfHubHTTPError():
            status = error.response.status_code
            if status in (401, 403):
                return DatasetGated(
                    f"{endpoint} refuses {dataset} (HTTP {status}): it has no such dataset, or needs a token;"
                    " check the spelling, or set HF_TOKEN to a token with read access"
                )
            return HubUnreachable(
                f"{endpoint} answered HTTP {status} for {dataset}; run this again later, downloaded bytes are kept"
            )
        case HTTPError() | LocalEntryNotFoundError():
            return HubUnreachable(
                f"{endpoint} cannot be reached ({error}); check HF_ENDPOINT and the proxy settings and run this again"
                " (downloaded bytes are kept), or use only the cache with HF_HUB_OFFLINE=1"
            )
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return StorageError(
                f"the disk of {cache} is full; free some space there, or set HF_HOME to a folder on a larger disk"
            )
        case OSError(errno=int()):
            return StorageError(f"{cache} cannot be written: {error}; set HF_HOME to a writable folder")
    return HubUnreachable(f"{dataset} arrived incomplete ({error}); run this again, downloaded bytes are kept")
