"""Signal handlers that run once.

Invariant: after the first signal the others of the set are ignored, so that the clean-up it began is never interrupted.
"""

import signal
from collections.abc import Callable, Iterable


def on_first_signal(signals: Iterable[signal.Signals], handler: Callable[[signal.Signals], None]) -> None:
    """Call `handler` with the first of `signals` to arrive, in the main thread. The handler may raise."""
    watched = tuple(signals)

    def first(number: int, _frame: object) -> None:
        ignore(watched)
        handler(signal.Signals(number))

    for each in watched:
        signal.signal(each, first)


def ignore(signals: Iterable[signal.Signals]) -> None:
    """Ignore these signals from now on."""
    for each in signals:
        signal.signal(each, signal.SIG_IGN)
