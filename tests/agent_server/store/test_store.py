"""Session records: one session a client id, fenced attempts, cancels, rewards only where completed."""

import sqlite3
import threading

import pytest

from agent_server.store.store import Fenced, Store
from agent_server.tasks.order import TaskOrder
from client.errors import Cancelled, Conflict, SandboxStartFailed, WorkerLost
from client.redaction import fingerprint
from client.wire import Status
from tests.agent_server.conftest import ONE_TASK, session_request


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    yield store
    store.close()


KEY = "sk-0123456789"


def submitted(store: Store, name: str = "s") -> str:
    return store.submit(session_request(name, "g"), ONE_TASK)[0]


def test_the_same_client_id_is_the_same_session_also_when_asked_at_once(store):
    found = set()
    threads = [threading.Thread(target=lambda: found.add(submitted(store))) for _ in range(16)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(found) == 1 and store.counts() == {"train": {"queued": 1}}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("base_url", "http://y"),
        ("api_key", "another"),
        ("group_id", "h"),
        ("mode", "eval"),
        ("task_id", "u"),
        ("metadata", {"a": 2}),
    ],
)
def test_the_same_client_id_with_another_field_is_a_conflict(store, field, value):
    order = TaskOrder({"train": ["t", "u"], "eval": ["t"]}, seed=0)
    first = session_request("s", "g", task_id="t", metadata={"a": 1})
    session, _ = store.submit(first, order)
    other = first.model_copy(update={field: value})
    for end in (False, True):
        if end:
            store.request_cancel(session)  # drops the key
        with pytest.raises(Conflict) as refused:
            store.submit(other, order)
        assert refused.value.field == field and f"'{field}'" in str(refused.value)
        assert store.submit(first, order)[0] == session
    assert sum(sum(counts.values()) for counts in store.counts().values()) == 1


def test_a_key_that_names_its_session_is_kept_nowhere_after_the_end(store, tmp_path):
    """Relax's clients send one value as session_id and as api_key."""
    request = session_request(KEY, f"g {KEY}").model_copy(update={"api_key": KEY, "metadata": {"id": [KEY]}})
    session, _ = store.submit(request, ONE_TASK)
    assert store.admit(session)["api_key"] == KEY  # its worker needs it
    failure = SandboxStartFailed(f"Bearer {KEY}")
    assert store.requeue(session, failure, attempt=1, max_attempts=3)
    store.admit(session)
    store.finish(session, 2, Status.COMPLETED, reward=1.0, submission=f"+{KEY}", grade={"log": KEY, KEY: {"a": KEY}})
    view = store.view(session)
    assert view.client_session_id == fingerprint(KEY) and view.submission == f"+{fingerprint(KEY)}"
    assert store.submit(request, ONE_TASK) == (session, Status.COMPLETED)
    assert KEY not in view.model_dump_json() and KEY not in str([tuple(row) for row in store.unpublished_events(99)])
    store.checkpoint()
    assert [path for path in tmp_path.iterdir() if KEY.encode() in path.read_bytes()] == []


def test_a_late_attempt_cannot_write(store):
    session = submitted(store)
    assert store.admit(session)["attempt"] == 1 and store.admit(session) is None
    store.end_without_result(session, WorkerLost("gone"), attempt=1)
    with pytest.raises(Fenced):
        store.finish(session, 1, Status.COMPLETED, reward=1.0)
    with pytest.raises(Fenced):
        store.register_worker(session, 1, 1, 1)
    assert store.view(session).error["code"] == "worker_lost"


def test_a_cancel_before_the_worker_has_a_pid_reaches_it(store):
    session = submitted(store)
    store.admit(session)
    assert store.request_cancel(session) == Status.RUNNING
    with pytest.raises(Cancelled):
        store.register_worker(session, 1, 10, 20)


def test_a_cancelled_session_is_never_admitted(store):
    session = submitted(store)
    assert store.request_cancel(session) == Status.CANCELLED == store.request_cancel(session)
    assert store.admit(session) is None and store.list_queued("train", 5) == []


def test_a_reward_stands_only_on_completed_sessions(store):
    session = submitted(store)
    store.admit(session)
    for status, fields in [(Status.FAILED, {"reward": 0.0}), (Status.COMPLETED, {})]:
        with pytest.raises(sqlite3.IntegrityError):
            store.finish(session, 1, status, **fields)
    assert store.view(session).status == "running"


def test_a_cancel_changes_nothing_on_a_terminal_session(store):
    session = submitted(store)
    store.admit(session)
    store.finish(session, 1, Status.COMPLETED, reward=1.0)
    before = tuple(store.read("SELECT * FROM sessions")[0])
    assert store.request_cancel(session) == Status.COMPLETED
    assert tuple(store.read("SELECT * FROM sessions")[0]) == before


def test_a_completed_result_counts_although_the_session_was_to_be_stopped(store):
    session = submitted(store)
    store.admit(session)
    store.fail_when_stopped(session, 1, WorkerLost("late"))
    store.finish(session, 1, Status.COMPLETED, reward=1.0)
    assert store.view(session).reward == 1.0
