"""FileSemaphore: never more holders than slots, also when processes are killed, and in the order of arrival."""

import fcntl
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from agent_server.config import Settings
from agent_server.scheduling.file_semaphore import POLL_S, FileSemaphore
from tests.agent_server.conftest import eventually

FORK = multiprocessing.get_context("fork")
TIMEOUT_S = 20.0


@dataclass
class Bench:
    """Worker processes at one semaphore, and what they share."""

    directory: Path
    slots: Any = field(default_factory=lambda: FORK.Value("i", 2))
    waiting: Any = field(default_factory=lambda: FORK.Value("i", 0))  # workers that have found no free slot
    holders: Any = field(default_factory=lambda: FORK.Value("i", 0))
    most: Any = field(default_factory=lambda: FORK.Value("i", 0))  # holders at once
    workers: list[BaseProcess] = field(default_factory=list)

    def start(self, hold_s: float = 0.0, release: Any = None) -> BaseProcess:
        """A worker that holds a slot for a time, or until the event `release`."""
        worker = FORK.Process(target=self._work, args=(hold_s, release))
        worker.start()
        self.workers.append(worker)
        return worker

    def start_holder(self) -> tuple[BaseProcess, Any]:
        """A worker that holds a slot now, and the event that ends it."""
        release, before = FORK.Event(), self.holders.value
        worker = self.start(release=release)
        eventually(lambda: self.holders.value == before + 1, what="a holder")
        return worker, release

    def start_waiter(self) -> BaseProcess:
        """A worker that has found no free slot."""
        before = self.waiting.value
        worker = self.start()
        eventually(lambda: self.waiting.value == before + 1, what="a waiting worker")
        return worker

    def _work(self, hold_s: float, release: Any) -> None:
        semaphore = FileSemaphore(self.directory, "s", lambda: self.slots.value)
        with semaphore.acquire(on_wait=lambda: self._add(self.waiting, 1)):
            self._add(self.holders, 1)
            time.sleep(hold_s)
            if release is not None:
                release.wait(TIMEOUT_S)
            self._add(self.holders, -1)

    def _add(self, value: Any, n: int) -> None:
        with value.get_lock():
            value.value += n
            if value is self.holders:
                self.most.value = max(self.most.value, value.value)


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    for worker in bench.workers:
        worker.kill()
        worker.join()


def finishes(worker: BaseProcess) -> bool:
    worker.join(timeout=TIMEOUT_S)
    return worker.exitcode == 0


def test_never_more_holders_than_slots_and_every_worker_gets_one(bench):
    holders = [bench.start_holder() for _ in range(2)]
    workers = [bench.start(hold_s=0.05) for _ in range(10)]
    eventually(lambda: bench.waiting.value == 10, what="the other workers wait")
    for _, release in holders:
        release.set()
    assert all(map(finishes, [worker for worker, _ in holders] + workers)) and bench.most.value == 2


def test_a_killed_holder_frees_its_slot(bench):
    bench.slots.value = 1
    holder, _ = bench.start_holder()
    waiter = bench.start_waiter()
    time.sleep(5 * POLL_S)
    assert waiter.is_alive()
    os.kill(holder.pid, signal.SIGKILL)
    assert finishes(waiter)


def test_a_killed_waiter_blocks_no_other(bench):
    bench.slots.value = 1
    holder, release = bench.start_holder()
    first, second = bench.start_waiter(), bench.start_waiter()
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    release.set()
    assert finishes(second) and finishes(holder)


def test_more_slots_let_waiters_in_at_once_and_fewer_end_no_holder(bench):
    holders = [bench.start_holder() for _ in range(2)]
    bench.slots.value = 1
    late = bench.start_waiter()
    time.sleep(5 * POLL_S)
    assert late.is_alive() and all(holder.is_alive() for holder, _ in holders)
    bench.slots.value = 3
    assert finishes(late) and all(holder.is_alive() for holder, _ in holders)


def test_waits_are_reported_only_where_there_is_one(bench):
    calls: list[str] = []
    bench.slots.value = 1
    semaphore = FileSemaphore(bench.directory, "s", lambda: 1)

    def on_wait() -> None:
        calls.append("waits")
        release.set()

    with semaphore.acquire(on_wait, lambda: calls.append("acquires")):
        assert calls == []
    _, release = bench.start_holder()
    with semaphore.acquire(on_wait, lambda: calls.append("acquires")):
        assert calls == ["waits", "acquires"] and bench.holders.value == 0


@pytest.mark.parametrize("file", ["s.0", "s.line"])
def test_workers_of_the_first_release_are_counted(tmp_path, file):
    """They outlive their server and hold these files of its work directory."""
    settings = Settings(data_path=tmp_path, sif_dir=tmp_path, work_dir=tmp_path)
    (tmp_path / "gates").mkdir()
    calls: list[str] = []
    with (tmp_path / "gates" / file).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def on_wait() -> None:
            calls.append("waits")
            fcntl.flock(held, fcntl.LOCK_UN)

        with FileSemaphore(settings.semaphore_dir, "s", lambda: 1).acquire(on_wait):
            assert calls == ["waits"]
