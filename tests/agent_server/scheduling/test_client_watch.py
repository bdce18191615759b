"""A session is cancelled when nobody waits for it and nobody has asked for the stated time, and never before."""

import signal
import socket

import pytest
import requests

from agent_server.scheduling import client_watch
from agent_server.scheduling.client_watch import ClientWatch
from agent_server.store.store import Store
from tests.agent_server.conftest import ONE_TASK, eventually, session_request
from tests.client.client_process import start_client
from tests.scripted_model import Hang

LIMIT_S = 60.0


class Clock:
    """`time.monotonic`, which moves only when a test moves it."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(client_watch, "time", clock)
    return clock


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    yield store
    store.close()


def statuses_after(clock: Clock, watch: ClientWatch, store: Store, seconds: float) -> list[str]:
    """Check every 10 s; the sessions' states after `seconds`, in order of arrival."""
    for _ in range(int(seconds / 10)):
        clock.now += 10
        watch.check()
    return [row["status"] for row in store.read("SELECT status FROM sessions ORDER BY seq")]


def submit(store: Store, *names: str) -> list[str]:
    return [store.submit(session_request(name, name), ONE_TASK)[0] for name in names]


def test_silence_cancels_and_questions_do_not(store, clock):
    silent, asked = submit(store, "silent", "asked")
    watch = ClientWatch(store, LIMIT_S)
    watch.check()
    for _ in range(4):
        watch.note(asked)
        before = statuses_after(clock, watch, store, 50)
    assert before == ["cancelled", "queued"]
    assert [row["name"] for row in store.unpublished_events(9) if row["session_id"] == silent][1] == "abandoned"
    assert statuses_after(clock, watch, store, LIMIT_S + 20) == ["cancelled", "cancelled"]


def test_an_active_session_is_marked_for_its_worker(store, clock):
    (session,) = submit(store, "active")
    store.admit(session)
    watch = ClientWatch(store, LIMIT_S)
    assert statuses_after(clock, watch, store, LIMIT_S + 30) == ["running"]
    assert store.list_active()[0]["cancel_requested"] and watch.check() > 0  # once
    assert sum(row["name"] == "abandoned" for row in store.unpublished_events(99)) == 1


def test_a_client_that_waits_is_there_until_its_connection_ends(store, clock):
    submit(store, "waits")
    (session,) = store.list_live()
    watch = ClientWatch(store, LIMIT_S)
    ours, theirs = socket.socketpair()
    with ours, watch.waiting(session, ours):
        assert statuses_after(clock, watch, store, 10 * LIMIT_S) == ["queued"]
        theirs.close()
        assert statuses_after(clock, watch, store, LIMIT_S) == ["queued"]
        assert statuses_after(clock, watch, store, 20) == ["cancelled"]


def test_the_time_counts_from_the_end_of_a_long_poll(store, clock):
    submit(store, "waits")
    (session,) = store.list_live()
    watch = ClientWatch(store, LIMIT_S)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with watch.waiting(session, ours):
            statuses_after(clock, watch, store, 10 * LIMIT_S)
        assert statuses_after(clock, watch, store, LIMIT_S) == ["queued"]
        assert statuses_after(clock, watch, store, 20) == ["cancelled"]


def test_a_pause_of_the_server_is_nobodys_silence(store, clock):
    submit(store, "asks")
    watch = ClientWatch(store, LIMIT_S)
    watch.check()
    clock.now += 10 * LIMIT_S
    watch.check()
    assert statuses_after(clock, watch, store, LIMIT_S) == ["queued"]
    assert statuses_after(clock, watch, store, 20) == ["cancelled"]


def test_zero_is_never(store, clock):
    submit(store, "silent")
    assert statuses_after(clock, ClientWatch(store, 0.0), store, 100_000) == ["queued"]


def test_a_killed_client_ends_its_session_and_a_stopped_one_does_not(own_server, model, tmp_path):
    """Both wait in long polls while the model is slow; a third session is queued behind them, its client killed too."""
    server = own_server(AGENT_SERVER_CLIENT_TIMEOUT_S="2", AGENT_SERVER_TRAIN_CONCURRENCY="2")
    clients = {}
    for name in ("killed client", "stopped client", "queued client"):
        model.scripts[name] = [Hang(60)]
        (tmp_path / name).mkdir()
        clients[name] = start_client(tmp_path / name, server.url, session_id=name, base_url=model.url)
        if name != "queued client":
            eventually(lambda name=name: name in model.requests, within_s=60, what="the agent calls its model")
    try:
        eventually(lambda: counts(server) == {"running": 2, "queued": 1})
        clients["stopped client"].send_signal(signal.SIGSTOP)
        for name in ("killed client", "queued client"):
            clients[name].kill()
        eventually(lambda: counts(server) == {"running": 1, "cancelled": 2}, within_s=20)
        assert clients["stopped client"].poll() is None
    finally:
        for client in clients.values():
            client.kill()
            client.wait()
    eventually(lambda: counts(server) == {"cancelled": 3}, within_s=20)


def counts(server) -> dict[str, int]:
    return requests.get(f"{server.url}/healthz", timeout=10).json()["sessions"]["train"]
