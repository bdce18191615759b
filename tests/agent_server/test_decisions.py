"""The parts that only decide or remember: scheduler, leases, catalog, settings, store, test outcomes."""

import json
import sqlite3
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_server.grading.datasets import registry as plug
from agent_server.grading.outcomes import parse_pytest_summary, resolved
from agent_server.scheduling.scheduler import admissions
from agent_server.store.store import Fenced, Store
from agent_server.tasks.catalog import Catalog
from agent_server.tasks.leases import Leases
from agent_server.tasks.task import Task
from client.errors import Cancelled, InvalidRequest, NotFound, WorkerLost
from client.wire import SessionRequest, Status

# --- scheduler ----------------------------------------------------------------------------------------------------------

modes = st.sampled_from(["train", "eval"])
counts = st.dictionaries(modes, st.integers(0, 12))


@given(
    queued=st.dictionaries(modes, st.lists(st.uuids().map(str), unique=True, max_size=20)),
    running=counts,
    limits=counts,
)
def test_admissions_are_fifo_and_never_over_the_limit(queued, running, limits):
    admitted = admissions(queued, running, limits)
    for mode, waiting in queued.items():
        mine = [session for session in admitted if session in waiting]
        assert mine == waiting[: len(mine)], "out of order"
        free = max(0, limits.get(mode, 0) - running.get(mode, 0))
        assert len(mine) == min(free, len(waiting)), "over the limit, or a slot left idle while somebody waits"


# --- leases -------------------------------------------------------------------------------------------------------------


def write_rows(folder, n: int) -> None:
    rows = [
        {"instance_id": f"t{i}", "image_name": "i", "problem_statement": "p", "patch": "x", "FAIL_TO_PASS": json.dumps([f"a::t{i}"]), "PASS_TO_PASS": [], "test_cmd": "t"}
        for i in range(n)
    ]  # fmt: skip
    for mode in ("train", "eval"):
        (folder / f"{mode}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def request(session: str, group: str, mode: str = "train", **fields) -> SessionRequest:
    return SessionRequest(session_id=session, group_id=group, mode=mode, base_url="http://x", api_key="k", **fields)


def lease_all(store: Store, leases: Leases, groups: list[str], mode: str = "train") -> list[str]:
    rows = []
    for group in groups:
        session, _ = store.submit(request(f"{mode} {group}", group, mode), leases.lease)
        rows.append(store.view(session).task_id)
    return rows


def test_an_epoch_goes_through_every_row_once_and_a_restart_continues_it(tmp_path):
    write_rows(tmp_path, 5)
    store, leases = Store(tmp_path / "w"), Leases(Catalog(tmp_path), seed=7)
    first = lease_all(store, leases, ["a", "b", "c"])
    store.close()
    store, leases = Store(tmp_path / "w"), Leases(Catalog(tmp_path), seed=7)
    assert lease_all(store, leases, ["a", "b", "c"]) == first  # a group keeps its row
    rest = lease_all(store, leases, [f"g{i}" for i in range(7)])
    assert sorted(first + rest[:2]) == sorted(rest[2:7]) == [f"t{i}" for i in range(5)]
    assert first + rest[:2] != rest[2:7]  # another order in the next epoch
    assert lease_all(store, leases, [f"e{i}" for i in range(6)], "eval") == ["t0", "t1", "t2", "t3", "t4", "t0"]
    store.close()


def test_a_row_asked_for_by_name_does_not_disturb_the_epoch(tmp_path):
    write_rows(tmp_path, 3)
    store, leases = Store(tmp_path / "w"), Leases(Catalog(tmp_path), seed=1)
    session, _ = store.submit(request("s", "named", task_id="t1"), leases.lease)
    assert store.view(session).task_id == "t1"
    assert sorted(lease_all(store, leases, ["a", "b", "c"])) == ["t0", "t1", "t2"]
    with pytest.raises(NotFound, match="no train task 't9'"):
        store.submit(request("s2", "g", task_id="t9"), leases.lease)
    store.close()


# --- store --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    yield store
    store.close()


def submitted(store: Store, name: str = "s") -> str:
    return store.submit(request(name, "g"), lambda *_: "t")[0]


def test_the_same_client_id_is_the_same_session_also_when_asked_at_once(store):
    found = set()
    threads = [threading.Thread(target=lambda: found.add(submitted(store))) for _ in range(16)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(found) == 1 and store.counts() == {"train": {"queued": 1}}


def test_a_late_attempt_cannot_write(store):
    session = submitted(store)
    assert store.admit(session)["attempt"] == 1 and store.admit(session) is None
    assert store.end_without_result(session, WorkerLost("gone"), attempt=1)
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
    assert store.admit(session) is None and store.queued("train", 5) == []


def test_a_reward_stands_only_on_completed_sessions(store):
    session = submitted(store)
    store.admit(session)
    for status, fields in [(Status.FAILED, {"reward": 0.0}), (Status.COMPLETED, {})]:
        with pytest.raises(sqlite3.IntegrityError):
            store.finish(session, 1, status, **fields)
    assert store.view(session).status == "running"


# --- catalog and settings -----------------------------------------------------------------------------------------------


def test_a_row_keeps_its_lists_through_json():
    task = Task("t", "swesmith", "i", "p", ("a::b", "c.py::d[x, y]"), (), {"test_cmd": "cmd"})
    assert Task.from_dict(json.loads(json.dumps(task.as_dict()))) == task and plug.load("swesmith").test_files(
        task
    ) == ("a", "c.py")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_body_is_parsed_or_refused_clearly(body):
    try:
        SessionRequest.parse(body)
    except InvalidRequest as refused:
        assert str(refused)


# --- outcomes -----------------------------------------------------------------------------------------------------------

SUMMARY = """
PASSED tests/fake.py::printed_by_a_test
=========================== short test summary info ============================
PASSED tests/a.py::test_one
\x1b[32mPASSED\x1b[0m tests/a.py::test_two[a - b]
FAILED tests/a.py::test_three[x y] - assert 1 == 2
PASSED tests/a.py::test_four
ERROR tests/a.py::test_four - teardown broke
SKIPPED [1] tests/a.py:3: not here
XFAIL tests/a.py::test_five - known
2 failed, 3 passed in 0.1s
"""


def test_outcomes_come_from_the_summary_only():
    assert parse_pytest_summary(SUMMARY) == {
        "tests/a.py::test_one": "PASSED", "tests/a.py::test_two[a - b]": "PASSED", "tests/a.py::test_three[x y]": "FAILED",
        "tests/a.py::test_four": "ERROR", "tests/a.py::test_five": "XFAIL",
    }  # fmt: skip
    assert parse_pytest_summary("PASSED tests/a.py::test_one\n") == {}


def test_a_missing_or_skipped_test_is_a_failed_one():
    assert resolved({"a": "PASSED", "b": "PASSED"}, ["a"], ["b"])
    assert (
        not resolved({"a": "PASSED"}, ["a"], ["b"])
        and not resolved({"a": "XPASS"}, ["a"], [])
        and not resolved({}, ["a"], [])
    )
