"""Signals of a worker, raised as exceptions in its main thread.

Invariant: only the first SIGTERM is raised. A second one must not interrupt the unwinding.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from client.signals import ignore, on_first_signal


class Interruption(KeyboardInterrupt):
    """A signal that ends the agent. A KeyboardInterrupt, because libraries let that pass: handlers of Exception do not
    catch it, and mini-swe-agent's retries, which catch everything else, do not repeat it."""


class CancelSignal(Interruption):
    """SIGTERM: the session was cancelled."""


class AgentTimeout(Interruption):
    """SIGALRM: the agent's time is over, in whatever call it is."""


def raise_signals() -> None:
    """Let SIGTERM raise CancelSignal, once, and SIGALRM AgentTimeout."""
    on_first_signal([signal.SIGTERM], _raise_cancel)
    signal.signal(signal.SIGALRM, _raise_timeout)


def ignore_cancel() -> None:
    """From here on SIGTERM has no effect: the end of the session is being recorded."""
    ignore([signal.SIGTERM])


@contextmanager
def agent_deadline(after_s: float) -> Iterator[None]:
    """Raise AgentTimeout in the block after `after_s` seconds."""
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _raise_cancel(_signal: signal.Signals) -> NoReturn:
    raise CancelSignal


def _raise_timeout(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise AgentTimeout
