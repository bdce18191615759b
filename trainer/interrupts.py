"""Ctrl-C, SIGTERM and SIGHUP become one exception, raised once, in the main thread.

Invariant: the first signal ends the run; later ones change nothing, so the clean-up that the first began is never cut
short. What must not be torn apart (starting a process and noting that it runs; cleaning up) is `held()`: a signal that
comes meanwhile is raised on the way out. `check()` raises again where somebody's code swallowed the exception.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """The user or the system wants the run to end. Not an Exception: nothing but the run's own end handles it."""

    def __init__(self, signum: int):
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


class Interrupts:
    """Holds the process's signal handlers while entered. Enter it in the main thread."""

    def __init__(self) -> None:
        self._signum: int | None = None
        self._holds = 0
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "Interrupts":
        for signum in SIGNALS:
            self._previous[signum] = signal.signal(signum, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        # After a signal the process is about to end, and an impatient second one must not change how.
        for signum, handler in self._previous.items():
            signal.signal(signum, signal.SIG_IGN if self._signum else handler)

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        if self._signum is not None:
            print("stopping already: ending what this run started", file=sys.stderr, flush=True)
            return
        self._signum = signum
        if not self._holds:
            raise Interrupted(signum)

    def check(self) -> None:
        """Raise Interrupted if a signal has come."""
        if self._signum is not None and not self._holds:
            raise Interrupted(self._signum)

    @property
    def exit_code(self) -> int | None:
        """128 + the first signal's number; None where none came."""
        return None if self._signum is None else 128 + self._signum

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let no signal in before the block is left. For short blocks, and for cleaning up."""
        assert threading.current_thread() is threading.main_thread()
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
        self.check()
