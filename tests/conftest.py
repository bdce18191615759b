"""Order of the suite: tests marked `slow` run after all others, so that a plain mistake shows in seconds.
And a way to find processes that a test left behind."""

import signal
import time
import uuid
from pathlib import Path

import pytest

from trainer.interrupts import SIGNALS, Interrupts


def pytest_configure() -> None:
    """A suite started in the background (`&`) ignores SIGINT, and so would every process it starts, for good."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(
        key=lambda item: item.get_closest_marker("slow") is not None
    )  # stable: otherwise the order of the folders


@pytest.fixture
def word():
    """Put into the environment of a test's processes, so that leftovers can be found."""
    return f"word-{uuid.uuid4().hex}"


@pytest.fixture
def left_alive(word):
    """Processes that hold `word` in their environment; killed ones get a moment to be gone."""

    def left_alive() -> list[int]:
        deadline = time.monotonic() + 10
        while (found := _processes_with(word)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    return left_alive


def _processes_with(word: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if word.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue  # it ended meanwhile, or is not ours
    return found


@pytest.fixture
def interrupts():
    """Entered Interrupts; the test runner has its own signal handlers back afterwards."""
    before = {signum: signal.getsignal(signum) for signum in SIGNALS}
    with Interrupts() as interrupts:
        yield interrupts
    for signum, handler in before.items():
        signal.signal(signum, handler)
