"""Server loop: one thread that runs a list of steps after each notification, and at least every half second.

Invariant: a failed pass is logged and repeated within about a second; no failure ends the loop.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from agent_server.scheduling.inbox import Inbox
from client.errors import StackError

log = logging.getLogger(__name__)
IDLE_S = 0.5  # the longest pause between two passes
Step = Callable[[], float]  # does its work, and returns the longest pause in seconds until it must run again


class Loop:
    """`steps` run in order. A step that raises ends its pass, and the next pass begins with the first step."""

    def __init__(self, inbox: Inbox, steps: Sequence[Step]):
        self._inbox, self._steps = inbox, steps
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)

    def start(self) -> None:
        """Run passes in a thread from now on."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def request_stop(self) -> None:
        """End the thread after the pass that runs; a notification makes this soon."""
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end."""
        self._thread.join(timeout=timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._inbox.wait(self._pass())

    def _pass(self) -> float:
        """Longest pause in seconds until the next pass."""
        try:
            return min(IDLE_S, *(step() for step in self._steps))
        except StackError as failure:
            log.error("loop: %s", failure)
        except Exception:
            log.exception("loop: this pass failed and will be repeated")
        time.sleep(IDLE_S)
        return IDLE_S
