"""One exception for SIGINT, SIGTERM and SIGHUP, raised once, in the main thread.

Invariant: the first signal ends the run; later ones change nothing, so clean-up is never interrupted. Code that must
not be interrupted (starting a process and recording it, clean-up) runs in `deferred()`: a signal that arrives there is
raised at its end. `check()` raises again if other code has swallowed the exception.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from client.signals import ignore

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asks the run to end. Not an Exception, so that no handler of errors swallows it."""

    def __init__(self, signum: int):
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


class Interrupts:
    """Context manager that handles the process's signals. Enter it in the main thread."""

    def __init__(self) -> None:
        self._signum: int | None = None
        self._deferred = 0  # depth of `deferred()` blocks
        self._previous: dict[int, Callable[[int, FrameType | None], Any] | int | signal.Handlers | None] = {}

    def __enter__(self) -> "Interrupts":
        for signum in SIGNALS:
            self._previous[signum] = signal.signal(signum, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        # After a signal the process is about to end, and a second signal must not change its exit code.
        if self._signum is not None:
            ignore(SIGNALS)
            return
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        if self._signum is not None:
            print("stopping already: ending the processes of this run", file=sys.stderr, flush=True)
            return
        self._signum = signum
        if not self._deferred:
            raise Interrupted(signum)

    def check(self) -> None:
        """Raise Interrupted if a signal has arrived."""
        if self._signum is not None and not self._deferred:
            raise Interrupted(self._signum)

    @property
    def exit_code(self) -> int | None:
        """128 + the number of the first signal; None without one."""
        return None if self._signum is None else 128 + self._signum

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Postpone signals to the end of the block. For short blocks and clean-up."""
        assert threading.current_thread() is threading.main_thread()
        self._deferred += 1
        try:
            yield
        finally:
            self._deferred -= 1
        self.check()
