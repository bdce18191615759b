"""The server's loop: passes after notifications, after failures, and at least every half second."""

import threading
import uuid

import pytest

from agent_server.scheduling.inbox import Inbox
from agent_server.scheduling.loop import IDLE_S, Loop
from agent_server.worker.notification import notify
from client.errors import ConfigError, StorageError


@pytest.fixture
def address() -> str:
    return f"\0test-loop-{uuid.uuid4().hex}"


@pytest.fixture
def run_loop(address, tmp_path):
    """Start a loop of these steps; it ends with the test."""
    inbox, loops = Inbox(address, tmp_path), []
    inbox.open()

    def run_loop(*steps) -> Loop:
        loops.append(Loop(inbox, steps))
        loops[-1].start()
        return loops[-1]

    yield run_loop
    for loop in loops:
        loop.request_stop()
        notify(address)
        loop.join(timeout_s=5)
        assert not loop.alive
    inbox.close()


def test_a_notification_causes_a_pass_at_once(run_loop, address):
    passes = threading.Semaphore(0)

    def step() -> float:
        passes.release()
        return 100.0

    run_loop(step)
    assert passes.acquire(timeout=5)
    notify(address)
    assert passes.acquire(timeout=IDLE_S / 2)


def test_a_lost_notification_costs_half_a_second(run_loop):
    passes = threading.Semaphore(0)

    def step() -> float:
        passes.release()
        return 100.0

    run_loop(step)
    for _ in range(3):
        assert passes.acquire(timeout=IDLE_S + 2)


def test_a_failed_step_ends_its_pass_and_is_repeated(run_loop):
    order, done = [], threading.Event()
    failures = [StorageError("full"), ValueError("broken")]

    def first() -> float:
        order.append("first")
        if failures:
            raise failures.pop()
        return 100.0

    def second() -> float:
        order.append("second")
        done.set()
        return 100.0

    run_loop(first, second)
    assert done.wait(timeout=10)
    assert order[:4] == ["first", "first", "first", "second"]


def test_one_inbox_a_work_directory(address, tmp_path):
    inbox, other = Inbox(address, tmp_path), Inbox(address, tmp_path)
    inbox.open()
    with pytest.raises(ConfigError, match="another agent server works in"):
        other.open()
    inbox.close()
    other.open()
    other.close()
