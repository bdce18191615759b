"""How many of all workers do one thing at once: start a sandbox, run tests.

Kernel file locks, one file a slot: workers outlive the server and may be killed at any moment, and a lock is free as soon
as its holder is gone. Those who wait stand in line at one more lock; only the first of them looks for a free slot.
Invariant: never more than `slots()` inside (lowering the number ends nobody), and a waiting worker can be interrupted.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOOK_AGAIN_S = 0.02


class Gate:
    """`directory` holds the gate's files; `slots` is asked at every look, so the number may change at any time."""

    def __init__(self, directory: Path, name: str, slots: Callable[[], int]):
        self.name = name
        self._directory, self._slots = directory, slots

    @contextmanager
    def passed(
        self, on_wait: Callable[[], None] = lambda: None, on_pass: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Inside the gate. `on_wait` is called if there is no free slot at once, and then `on_pass` when there is."""
        descriptor = self._try()
        if descriptor is None:
            on_wait()
            descriptor = self._stand_in_line()
            on_pass()
        try:
            yield
        finally:
            os.close(descriptor)

    def _stand_in_line(self) -> int:
        line = self._open("line")
        try:
            fcntl.flock(line, fcntl.LOCK_EX)
            while (descriptor := self._try(waited=True)) is None:
                time.sleep(LOOK_AGAIN_S)
            return descriptor
        finally:
            os.close(line)

    def _try(self, waited: bool = False) -> int | None:
        """The descriptor of a slot that is ours now. Nobody passes by those who stand in line."""
        if not waited and not self._line_is_empty():
            return None
        for number in range(self._slots()):
            descriptor = self._open(str(number))
            if _locks(descriptor):
                return descriptor
            os.close(descriptor)
        return None

    def _line_is_empty(self) -> bool:
        line = self._open("line")
        try:
            return _locks(line)
        finally:
            os.close(line)

    def _open(self, slot: str) -> int:
        self._directory.mkdir(parents=True, exist_ok=True)
        return os.open(self._directory / f"{self.name}.{slot}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
