"""A lock that threads get in the order in which they asked for it.

Python's own locks let whoever runs at the moment have it, and in a burst the unlucky wait several times as long as the rest.
Invariant: while anybody waits, the lock is handed over and never free. For threads that no signal interrupts.
"""

import threading
from collections import deque


class Turns:
    """`with turns:`, as with any lock; not for a thread that has it already."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._guard:
            if not self._taken:
                self._taken = True
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        turn.acquire()

    def __exit__(self, *_: object) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False
