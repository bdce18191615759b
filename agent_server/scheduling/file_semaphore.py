"""Semaphores across processes, made of kernel file locks: they bound sandbox starts and gradings at once.

One lock file per slot. Workers outlive the server and may be killed at any moment; the kernel frees a lock as soon as
its holder is gone. Waiting workers queue at one further lock, and only the first of that queue polls for a free slot.
Invariant: never more holders than `slots()`, though lowering it ends no holder; a waiting worker can be interrupted.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_S = 0.02
QUEUE = "line"  # the file's name since the first release: an earlier server's workers queue at it


class FileSemaphore:
    """FIFO semaphore. `directory` holds the lock files; `slots` is called at every poll, so it may change any time."""

    def __init__(self, directory: Path, name: str, slots: Callable[[], int]):
        self.name = name
        self._directory, self._slots = directory, slots

    @contextmanager
    def acquire(
        self, on_wait: Callable[[], None] = lambda: None, on_acquire: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Hold one slot. Where none is free, `on_wait` is called first, and `on_acquire` when the wait is over."""
        descriptor = self._try_slots()
        if descriptor is None:
            on_wait()
            descriptor = self._wait_for_slot()
            on_acquire()
        try:
            yield
        finally:
            os.close(descriptor)

    def _wait_for_slot(self) -> int:
        queue = self._open(QUEUE)
        try:
            fcntl.flock(queue, fcntl.LOCK_EX)
            while (descriptor := self._try_slots(first_in_queue=True)) is None:
                time.sleep(POLL_S)
            return descriptor
        finally:
            os.close(queue)

    def _try_slots(self, first_in_queue: bool = False) -> int | None:
        """Descriptor of a slot locked now, or None. A newcomer gets no slot while others queue."""
        if not first_in_queue and not self._queue_is_empty():
            return None
        for number in range(self._slots()):
            descriptor = self._open(str(number))
            if _try_lock(descriptor):
                return descriptor
            os.close(descriptor)
        return None

    def _queue_is_empty(self) -> bool:
        queue = self._open(QUEUE)
        try:
            return _try_lock(queue)
        finally:
            os.close(queue)

    def _open(self, slot: str) -> int:
        self._directory.mkdir(parents=True, exist_ok=True)
        return os.open(self._directory / f"{self.name}.{slot}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
