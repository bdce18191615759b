"""Retries a worker's writes to the store while the disk is full."""

import logging
from collections.abc import Callable

import tenacity

from client.errors import StorageError

log = logging.getLogger(__name__)
RETRY_TIMEOUT_S = 600.0
RETRY_INTERVAL_S = 1.0


def retry_on_full_disk(write: Callable[[], None]) -> None:
    """Call `write` until it succeeds: a full disk may be freed soon, and a session must not be lost to it.

    Raises StorageError after RETRY_TIMEOUT_S, and at once what is no StorageError.
    """
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(StorageError),
        wait=tenacity.wait_fixed(RETRY_INTERVAL_S),
        stop=tenacity.stop_after_delay(RETRY_TIMEOUT_S),
        before_sleep=lambda state: log.error(
            "a record waits for the disk: %s", state.outcome and state.outcome.exception()
        ),
        reraise=True,
    )
    retrying(write)
