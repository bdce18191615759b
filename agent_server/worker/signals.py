"""Signals of a worker, raised as exceptions in its main thread: SIGTERM as CancelSignal, SIGALRM as AgentTimeout.

Invariant: only the first SIGTERM is raised. A second one must not interrupt the unwinding.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from agent_server.agents.base import AgentTimeout
from client.signals import ignore, on_first_signal


class CancelSignal(KeyboardInterrupt):
    """SIGTERM: the session was cancelled. A KeyboardInterrupt for the reason that AgentTimeout is one."""


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
