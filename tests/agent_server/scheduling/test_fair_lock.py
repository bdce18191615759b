"""A lock that is had in the order of asking."""

import threading
import time

from agent_server.scheduling.fair_lock import FairLock


def test_turns_come_in_the_order_of_asking_and_one_at_a_time():
    lock, order, inside = FairLock(), [], []

    def ask(number: int) -> None:
        with lock:
            inside.append(number)
            assert inside == [number]
            order.append(number)
            inside.remove(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    with lock:
        for thread in threads:
            thread.start()
            time.sleep(0.005)  # so that their order of asking is known
    for thread in threads:
        thread.join(timeout=10)
    assert order == list(range(20))


def test_an_exception_inside_passes_the_turn_on():
    lock = FairLock()
    for _ in range(2):
        try:
            with lock:
                raise ValueError
        except ValueError:
            pass
