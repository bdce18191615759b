"""Long polls return at the session's end, at the time limit, and when they close."""

import threading

import pytest

from agent_server.scheduling.long_polls import LongPolls
from agent_server.store.store import Store
from client.errors import NotFound
from client.wire import Status
from tests.agent_server.conftest import ONE_TASK, session_request


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    yield store
    store.close()


def wait_in_thread(long_polls: LongPolls, session_id: str, found: list) -> threading.Thread:
    """A waiting request; what it returns is appended to `found`. Returns once it waits."""
    thread = threading.Thread(target=lambda: found.append(long_polls.wait_terminal(session_id, 60.0).status))
    thread.start()
    while not long_polls._waiting.get(session_id):
        assert thread.is_alive()
    return thread


def test_an_end_wakes_its_own_requests_alone(store):
    long_polls, found = LongPolls(store), []
    ended, other = (store.submit(session_request(name, name), ONE_TASK)[0] for name in ("ended", "other"))
    threads = [wait_in_thread(long_polls, session_id, found) for session_id in (ended, other)]
    store.request_cancel(ended)
    long_polls.wake([ended])
    threads[0].join(timeout=10)
    assert found == [Status.CANCELLED] and threads[1].is_alive()
    long_polls.close()
    threads[1].join(timeout=10)
    assert found == [Status.CANCELLED, Status.QUEUED] and not long_polls._waiting


def test_after_the_close_every_request_returns_at_once(store):
    long_polls = LongPolls(store)
    session_id, _ = store.submit(session_request("s", "g"), ONE_TASK)
    assert long_polls.wait_terminal(session_id, 0.01).status == Status.QUEUED
    long_polls.close()
    assert long_polls.wait_terminal(session_id, 60.0).status == Status.QUEUED
    with pytest.raises(NotFound):
        long_polls.wait_terminal("none", 60.0)
