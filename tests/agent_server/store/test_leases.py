"""Leases of rows: by run, group and epoch; rows given back; expired records; a database of an earlier version."""

import json
import sqlite3
import time

import pytest

from agent_server.store import schema
from agent_server.store.database import DATABASE_NAME
from agent_server.store.store import Fenced, Store
from agent_server.tasks.order import TaskOrder
from client.errors import NotFound, SandboxStartFailed, ServerBusy, WorkerLost
from client.redaction import fingerprint
from client.wire import Status
from tests.agent_server.conftest import session_request

LONG = 10**6


def make_order(n: int, seed: int) -> TaskOrder:
    ids = [f"t{i}" for i in range(n)]
    return TaskOrder({"train": ids, "eval": ids}, seed)


class Clock:
    """`time.time`, which moves only when a test moves it."""

    def __init__(self):
        self.now = time.time()

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "time", clock)
    return clock


@pytest.fixture
def parts(tmp_path):
    """A store, and an order of four rows."""
    store = Store(tmp_path / "w")
    yield store, make_order(4, seed=3)
    store.close()


def submit(store: Store, order: TaskOrder, session: str, group: str, **fields) -> tuple[str, str]:
    """Ids of the session and of its row."""
    session_id, _ = store.submit(session_request(session, group, **fields), order)
    return session_id, store.view(session_id).task_id


def complete(store: Store, session_id: str, status: Status = Status.COMPLETED) -> None:
    attempt = store.admit(session_id)["attempt"]
    fields = {"reward": 1.0} if status is Status.COMPLETED else {"error": WorkerLost("gone").as_dict()}
    store.finish(session_id, attempt, status, **fields)


def lease_all(store: Store, order: TaskOrder, groups: list[str], mode: str = "train") -> list[str]:
    rows = []
    for group in groups:
        session, _ = store.submit(session_request(f"{mode} {group}", group, mode), order)
        rows.append(store.view(session).task_id)
    return rows


def test_an_epoch_goes_through_every_row_once_and_a_restart_continues_it(tmp_path):
    store, order = Store(tmp_path / "w"), make_order(5, seed=7)
    first = lease_all(store, order, ["a", "b", "c"])
    store.close()
    store, order = Store(tmp_path / "w"), make_order(5, seed=7)
    assert lease_all(store, order, ["a", "b", "c"]) == first  # a group keeps its row
    rest = lease_all(store, order, [f"g{i}" for i in range(7)])
    assert sorted(first + rest[:2]) == sorted(rest[2:7]) == [f"t{i}" for i in range(5)]
    assert first + rest[:2] != rest[2:7]  # another order in the next epoch
    assert lease_all(store, order, [f"e{i}" for i in range(6)], "eval") == ["t0", "t1", "t2", "t3", "t4", "t0"]
    store.close()


def test_a_row_requested_by_id_does_not_disturb_the_epoch(tmp_path):
    store, order = Store(tmp_path / "w"), make_order(3, seed=1)
    session, _ = store.submit(session_request("s", "named", task_id="t1"), order)
    assert store.view(session).task_id == "t1"
    assert sorted(lease_all(store, order, ["a", "b", "c"])) == ["t0", "t1", "t2"]
    with pytest.raises(NotFound, match="no train task 't9'"):
        store.submit(session_request("s2", "g", task_id="t9"), order)
    store.close()


def test_runs_are_independent(parts):
    mine, row = submit(*parts, "s", "g", run_id="mine")
    theirs, their_row = submit(*parts, "s", "g", run_id="theirs")
    assert mine != theirs and row == their_row, "each begins its own first epoch, in the seed's order"
    rows = [submit(*parts, f"s{n}", f"g{n}", run_id="mine")[1] for n in range(3)]
    assert sorted([row, *rows]) == ["t0", "t1", "t2", "t3"]
    assert submit(*parts, "s1", "g1", run_id="theirs")[1] == rows[0]


def test_a_group_that_never_completes_gives_its_row_back(parts, clock):
    store, _ = parts
    lost, row = submit(*parts, "lost", "lost")
    used, _ = submit(*parts, "used", "used")
    complete(store, lost, Status.FAILED)
    complete(store, used)
    store.expire(record_s=LONG, lease_idle_s=LONG, lease_s=LONG)
    others = [submit(*parts, f"before {n}", f"before {n}")[1] for n in range(1)]
    assert row not in others
    clock.advance(0.02)
    store.expire(record_s=LONG, lease_idle_s=0.01, lease_s=LONG)
    assert submit(*parts, "after", "after")[1] == row, "the position given back comes first"
    assert submit(*parts, "after too", "after too")[1] not in (row, *others)


def test_a_group_at_work_or_used_keeps_its_row(parts, clock):
    store, _ = parts
    _, queued_row = submit(*parts, "queued", "queued")
    used, used_row = submit(*parts, "used", "used")
    complete(store, used)
    clock.advance(0.02)
    store.expire(record_s=0.01, lease_idle_s=0.01, lease_s=LONG)
    assert submit(*parts, "more", "queued")[1] == queued_row
    assert submit(*parts, "again", "used")[1] == used_row, "also when the record of the completed session has expired"


def test_an_epoch_is_exact_also_when_rows_come_back(parts, clock):
    """Over two epochs with every third group lost once: each row is completed exactly twice."""
    store, _ = parts
    completed = []
    for number in range(100):
        if len(completed) == 8:
            break
        session, row = submit(*parts, f"s{number}", f"g{number}")
        if number % 3 == 0:
            complete(store, session, Status.FAILED)
            clock.advance(0.005)
            store.expire(record_s=LONG, lease_idle_s=0.001, lease_s=LONG)
        else:
            complete(store, session)
            completed.append(row)
    assert sorted(completed) == sorted(["t0", "t1", "t2", "t3"] * 2)


def test_an_expired_record_leaves_nothing(parts, clock):
    store, _ = parts
    done, _ = submit(*parts, "done", "done")
    complete(store, done)
    waiting, _ = submit(*parts, "waits", "waits")
    store.mark_published(store.unpublished_events(100)[-1]["id"])
    clock.advance(0.02)
    assert store.expire(record_s=LONG, lease_idle_s=LONG, lease_s=LONG) == 0
    assert store.expire(record_s=0.01, lease_idle_s=LONG, lease_s=0.01) == 1
    assert {row["session_id"] for row in store.read("SELECT session_id FROM events")} == {waiting}
    assert [row["group_id"] for row in store.read("SELECT group_id FROM leases")] == ["waits"]


def test_an_unpublished_event_outlives_its_record(parts, clock):
    store, _ = parts
    done, _ = submit(*parts, "done", "done")
    complete(store, done)
    clock.advance(0.02)
    store.expire(record_s=0.01, lease_idle_s=LONG, lease_s=LONG)
    assert [event["name"] for event in store.unpublished_events(100)] == ["queued", "admitted", "completed"]


def test_a_full_queue_refuses_new_sessions_alone(parts):
    store, _ = parts
    store.set_limits({"queue": 2})
    first, _ = submit(*parts, "a", "g")
    submit(*parts, "b", "g")
    with pytest.raises(ServerBusy, match="2 sessions are queued and the queue holds 2"):
        submit(*parts, "c", "g")
    assert submit(*parts, "a", "g")[0] == first
    store.admit(first)
    submit(*parts, "c", "g")


def test_an_attempt_is_repeated_only_while_that_is_safe(parts):
    store, _ = parts
    failure = SandboxStartFailed("no")
    session, _ = submit(*parts, "s", "g")
    later, _ = submit(*parts, "later", "g")
    for attempt in (1, 2):
        assert store.list_queued("train", 9) == [session, later], "it keeps its place"
        assert store.admit(session)["attempt"] == attempt
        assert store.requeue(session, failure, attempt=attempt, max_attempts=3)
        with pytest.raises(Fenced):
            store.record_model_call(session, attempt)
    store.admit(session)
    assert not store.requeue(session, failure, attempt=3, max_attempts=3), "attempts are used up"
    store.admit(later)
    store.record_model_call(later, 1)
    assert not store.requeue(later, failure, attempt=1, max_attempts=3), "the trainer has seen its conversation begin"


def test_a_cancelled_attempt_is_not_repeated(parts):
    store, _ = parts
    session, _ = submit(*parts, "s", "g")
    store.admit(session)
    store.request_cancel(session)
    assert not store.requeue(session, SandboxStartFailed("no"), attempt=1, max_attempts=3)


def test_a_database_of_the_first_version_is_brought_up_to_date(tmp_path):
    (tmp_path / "w").mkdir()
    old = sqlite3.connect(tmp_path / "w" / DATABASE_NAME)
    old.executescript(schema.MIGRATIONS[0] + "PRAGMA user_version = 1;")
    old.execute(
        "INSERT INTO sessions (id, client_session_id, group_id, mode, task_id, base_url, api_key, metadata, created_at)"
        " VALUES ('id', 's', 'g', 'train', 't2', 'http://x', 'k', '{}', 1.0),"
        " ('id2', 'secret-key', 'g2', 'train', 't2', 'http://x', 'secret-key', '{}', 1.0)"
    )
    old.execute("INSERT INTO leases VALUES ('train', 'g', 't2', 0, 1.0)")
    old.commit()
    old.close()
    store, order = Store(tmp_path / "w"), make_order(4, seed=3)
    assert submit(store, order, "s", "g") == ("id", "t2")
    request = session_request("secret-key", "g2").model_copy(update={"api_key": "secret-key"})
    assert store.submit(request, order)[0] == "id2" and store.view("id2").client_session_id == fingerprint("secret-key")
    rows = [submit(store, order, f"s{n}", f"g{n}")[1] for n in range(3)]
    assert rows == [order.task_at("train", position) for position in (1, 2, 3)]
    assert json.loads(store.read("SELECT cpu_seconds FROM sessions")[0][0]) == {}
    store.close()
