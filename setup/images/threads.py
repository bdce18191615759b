"""Threads that do one thing together.

Invariant: they end with the main thread, and the programs that they wait for with them.
"""

import queue
import threading
from collections.abc import Callable, Iterable


def in_threads(count: int, work: Callable[[], None]) -> None:
    """`count` threads call `work`, to the end of all; raises what one of them raised."""
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


def for_each(names: Iterable[str], at_once: int, act: Callable[[str], None]) -> None:
    """Calls `act` with every name, `at_once` at a time; raises what one call raised."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)

    def work() -> None:
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                return
            act(name)

    in_threads(min(at_once, waiting.qsize()), work)
