"""Order and grouping of the suite, and fixtures that find processes which a test left behind.

Invariant: a plain mistake shows in seconds, because fast tests run before slow ones.
"""

import signal
import time
import uuid
from pathlib import Path

import pytest

from trainer.interrupts import SIGNALS, Interrupts


def pytest_configure() -> None:
    """A suite started in the background (`&`) ignores SIGINT, and so would every process it starts, for good."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests in the order of the folders, then the slow ones. A file is one group unless a mark names another.

    A test of minutes starts first, in one process beside the fast ones: at the end the others would wait for it.
    """
    items.sort(key=_stage)
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            slow = item.get_closest_marker("slow") is not None
            item.add_marker(pytest.mark.xdist_group(f"{item.path}{' slow' if slow else ''}"))


def _stage(item: pytest.Item) -> int:
    """Sort key: 0 for a test of minutes, 1 for a fast one, 2 for another slow one."""
    slow = item.get_closest_marker("slow")
    if slow is None:
        return 1
    return 0 if slow.kwargs.get("minutes") else 2


@pytest.fixture
def process_tag():
    """Put into the environment of a test's processes, so that leftovers can be found."""
    return f"tag-{uuid.uuid4().hex}"


@pytest.fixture
def leftover_processes(process_tag):
    """Processes that hold `process_tag` in their environment; killed ones get a moment to be gone."""

    def leftover_processes() -> list[int]:
        deadline = time.monotonic() + 10
        while (found := _processes_with(process_tag)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    return leftover_processes


def _processes_with(process_tag: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if process_tag.encode() in (entry / "environ").read_bytes():
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
