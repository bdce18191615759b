"""Pools of daemon threads.

Invariant: threads end with the main thread, and the programs that they wait for end with them.
"""

import queue
import threading
from collections.abc import Callable, Iterable


def in_threads(count: int, work: Callable[[], None]) -> None:
    """Call `work` in `count` threads and wait for all of them. Raises the first exception of any."""
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # raised again below
            raised.append(error)

    threads = [threading.Thread(target=guarded, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def for_each(names: Iterable[str], concurrency: int, action: Callable[[str], None]) -> None:
    """Call `action` with every name, `concurrency` at a time. Raises the first exception of any call."""
    pending: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        pending.put(name)

    def work() -> None:
        while True:
            try:
                name = pending.get_nowait()
            except queue.Empty:
                return
            action(name)

    in_threads(min(concurrency, pending.qsize()), work)
