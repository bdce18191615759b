"""FIFO lock for threads.

`threading.Lock` goes to the thread that runs at the moment; in a burst some threads wait several times as long as
others. Not for threads that a signal handler interrupts.
Invariant: while a thread waits, the lock is handed over and never free.
"""

import threading
from collections import deque


class FairLock:
    """`with lock:`, as with `threading.Lock`. Not reentrant."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._guard:
            if not self._held:
                self._held = True
                return
            handover = threading.Lock()
            handover.acquire()
            self._waiting.append(handover)
        handover.acquire()

    def __exit__(self, *_: object) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._held = False
