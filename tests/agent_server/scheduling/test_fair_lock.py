"""FairLock is acquired in the order of the requests."""

import threading
from contextlib import suppress

from agent_server.scheduling.fair_lock import FairLock
from tests.agent_server.conftest import eventually


def test_threads_get_the_lock_in_order_and_one_at_a_time():
    lock, order, inside = FairLock(), [], []

    def request(number: int) -> None:
        with lock:
            inside.append(number)
            assert inside == [number]
            order.append(number)
            inside.remove(number)

    threads = [threading.Thread(target=request, args=(number,)) for number in range(20)]
    with lock:
        for number, thread in enumerate(threads, start=1):
            thread.start()
            eventually(lambda number=number: len(lock._waiting) == number, what="the thread queues")
    for thread in threads:
        thread.join(timeout=10)
    assert order == list(range(20))


def test_an_exception_releases_the_lock():
    lock = FairLock()
    for _ in range(2):
        with suppress(ValueError), lock:
            raise ValueError
