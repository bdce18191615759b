"""The gates between workers: never more inside than allowed, whoever is killed, and in the order of arrival."""

import multiprocessing
import os
import signal
import time

import pytest

from agent_server.scheduling.file_semaphore import FileSemaphore

FORK = multiprocessing.get_context("fork")


def worker(directory, slots, inside, most, hold_s: float) -> None:
    with FileSemaphore(directory, "g", lambda: slots.value).acquire():
        with inside.get_lock():
            inside.value += 1
            most.value = max(most.value, inside.value)
        time.sleep(hold_s)
        with inside.get_lock():
            inside.value -= 1


@pytest.fixture
def start(tmp_path):
    slots, inside, most = (FORK.Value("i", n) for n in (2, 0, 0))
    started = []

    def start(n: int, hold_s: float = 0.05):
        for _ in range(n):
            started.append(FORK.Process(target=worker, args=(tmp_path, slots, inside, most, hold_s)))
            started[-1].start()
        return started[-n:]

    start.slots, start.inside, start.most, start.directory = slots, inside, most, tmp_path
    yield start
    for process in started:
        process.kill()
        process.join()


def test_never_more_inside_than_slots_and_everybody_passes(start):
    processes = start(12)
    for process in processes:
        process.join(timeout=20)
        assert process.exitcode == 0
    assert start.most.value == 2


def test_a_killed_holder_frees_its_slot(start):
    start.slots.value = 1
    (holder,) = start(1, hold_s=100)
    while start.inside.value < 1:
        time.sleep(0.01)
    (next_one,) = start(1, hold_s=0)
    time.sleep(0.2)
    assert next_one.is_alive()
    os.kill(holder.pid, signal.SIGKILL)
    next_one.join(timeout=5)
    assert next_one.exitcode == 0


def test_a_killed_waiter_blocks_nobody(start):
    start.slots.value = 1
    (holder,) = start(1, hold_s=1.0)
    while start.inside.value < 1:
        time.sleep(0.01)
    (first,) = start(1, hold_s=0)
    time.sleep(0.1)
    (second,) = start(1, hold_s=0)
    time.sleep(0.1)
    os.kill(first.pid, signal.SIGKILL)
    second.join(timeout=5)
    assert second.exitcode == 0 and holder.exitcode in (None, 0)


def test_more_slots_let_waiters_in_at_once_and_fewer_end_nobody(start):
    start.slots.value = 2
    holders = start(2, hold_s=1.0)
    while start.inside.value < 2:
        time.sleep(0.01)
    start.slots.value = 1
    (late,) = start(1, hold_s=0)
    time.sleep(0.2)
    assert late.is_alive() and all(holder.is_alive() for holder in holders)
    start.slots.value = 3
    late.join(timeout=5)
    assert late.exitcode == 0 and all(holder.is_alive() for holder in holders)


def test_waiting_is_told_only_where_there_is_a_wait(start):
    told = []
    semaphore = FileSemaphore(start.directory, "g", lambda: 1)
    with semaphore.acquire(lambda: told.append("waits"), lambda: told.append("passes")):
        assert told == []
    (holder,) = start(1, hold_s=0.3)
    while start.inside.value < 1:
        time.sleep(0.01)
    start.slots.value = 1
    with semaphore.acquire(lambda: told.append("waits"), lambda: told.append("passes")):
        assert told == ["waits", "passes"] and start.inside.value == 0
