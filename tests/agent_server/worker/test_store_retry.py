"""Writes to the store wait for a full disk, and only for that."""

import pytest

from agent_server.store.sessions import Fenced
from agent_server.worker import store_retry
from agent_server.worker.store_retry import retry_on_full_disk
from client.errors import StorageError


@pytest.fixture
def attempts(monkeypatch):
    """Outcomes of the next writes: an error to raise, or None; the interval between them is short."""
    monkeypatch.setattr(store_retry, "RETRY_INTERVAL_S", 0.01)
    return []


def writing(attempts):
    def write() -> None:
        if failure := attempts.pop(0):
            raise failure

    return write


def test_a_write_is_repeated_until_the_disk_has_space(attempts):
    attempts += [StorageError("full"), StorageError("full"), None]
    retry_on_full_disk(writing(attempts))
    assert attempts == []


def test_the_last_error_is_raised_when_the_time_is_over(attempts, monkeypatch):
    monkeypatch.setattr(store_retry, "RETRY_TIMEOUT_S", 0.05)
    attempts += [StorageError("full")] * 1000
    with pytest.raises(StorageError, match="full"):
        retry_on_full_disk(writing(attempts))


@pytest.mark.parametrize("failure", [Fenced("another attempt"), KeyboardInterrupt()], ids=["fenced", "signal"])
def test_everything_else_is_raised_at_once(attempts, failure):
    attempts += [failure, None]
    with pytest.raises(type(failure)):
        retry_on_full_disk(writing(attempts))
    assert attempts == [None]
