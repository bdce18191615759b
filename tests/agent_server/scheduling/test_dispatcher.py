"""The dispatcher stops overdue and cancelled workers, frees a slot only when its worker is gone, and ends each session
that it cannot start."""

import signal

import pytest

from agent_server.config import Settings
from agent_server.executors.base import Launch
from agent_server.scheduling import dispatcher as dispatcher_module
from agent_server.scheduling.dispatcher import Dispatcher
from agent_server.store.store import Store
from agent_server.tasks.task import Task
from client.errors import Cancelled, DatasetError, ServerError, StorageError, WorkerLost
from client.wire import Status
from tests.agent_server.conftest import ONE_TASK, server_environment, session_request

SCRATCH_FILE = "left behind"


class FakeExecutor:
    """Executor whose workers are pids only. `ended_pids`: workers that end before the next pass. `results`: of the
    launches; while `holds_results`, they stay there."""

    def __init__(self):
        self.ready, self.holds_results = True, False
        self.jobs, self.results, self.signals, self.ended_pids, self.killed_groups = [], [], [], [], []

    def launch(self, job):
        self.jobs.append(job.session_id)
        self.results.append(Launch(job.session_id, job.attempt, 1000 + len(self.jobs), start_ticks=7))

    def launched(self):
        if self.holds_results:
            return []
        results, self.results = self.results, []
        return results

    def watch(self, pid, start_ticks):
        return True

    def ended(self):
        ended, self.ended_pids = self.ended_pids, []
        return ended

    def signal(self, pid, start_ticks, number):
        self.signals.append((pid, number))

    def kill_group(self, pid):
        self.killed_groups.append(pid)


@pytest.fixture
def settings(tmp_path):
    environment = server_environment(tmp_path / "work") | {
        "R2E_DATA_PATH": str(tmp_path),
        "R2E_SIF_DIR": str(tmp_path),
        "AGENT_SERVER_TRAIN_CONCURRENCY": "1",
    }
    return Settings.from_environment(environment)


@pytest.fixture
def store(settings):
    store = Store(settings.work_dir)
    store.set_limits(settings.limits)
    yield store
    store.close()


@pytest.fixture
def executor():
    return FakeExecutor()


@pytest.fixture
def dispatcher(settings, store, executor, monkeypatch):
    monkeypatch.setattr(dispatcher_module, "STOP_GRACE_S", 0.0)
    return Dispatcher(settings, store, lambda mode, task_id: Task(task_id, "r2e", "image", "problem"), executor)


@pytest.fixture
def session(dispatcher, settings, store) -> str:
    """A running session, whose worker (pid 1001) has registered and has a scratch folder."""
    session, _ = store.submit(session_request("first", "first"), ONE_TASK)
    dispatcher.reconcile()
    dispatcher.reconcile()  # takes the result of the launch
    store.register_worker(session, 1, 1001, 7)
    scratch = settings.scratch_dir / f"{session}.1"
    scratch.mkdir(parents=True)
    (scratch / SCRATCH_FILE).touch()
    return session


def make_overdue(store: Store, session: str) -> None:
    with store.transaction() as db:
        db.execute("UPDATE sessions SET started_at = started_at - 1e6 WHERE id = ?", (session,))


def test_an_overdue_worker_that_ignores_sigterm_is_killed_and_keeps_its_slot_until_reaped(
    dispatcher, executor, settings, store, session
):
    second, _ = store.submit(session_request("second", "second"), ONE_TASK)
    make_overdue(store, session)
    assert dispatcher.reconcile() == dispatcher_module.STOP_POLL_S
    assert executor.signals == [(1001, signal.SIGTERM)]
    dispatcher.reconcile()
    assert executor.signals == [(1001, signal.SIGTERM), (1001, signal.SIGKILL)]
    assert store.view(session).status == Status.RUNNING and executor.jobs == [session]

    executor.ended_pids = [1001]
    assert dispatcher.reconcile() == dispatcher_module.IDLE_S
    view = store.view(session)
    assert (view.status, view.error["code"]) == (Status.FAILED, "server_error")
    assert "outlasted AGENT_SERVER_SESSION_TIMEOUT_S=3900" in view.error["message"]
    assert executor.killed_groups == [1001] and not list(settings.scratch_dir.iterdir())
    assert executor.jobs == [session, second]


def test_an_overdue_worker_that_obeys_sigterm_leaves_a_failed_session(dispatcher, executor, store, session):
    make_overdue(store, session)
    dispatcher.reconcile()
    store.finish(session, 1, Status.CANCELLED, error=Cancelled("cancelled while running").as_dict())
    view = store.view(session)
    assert view.status == Status.FAILED and "outlasted" in view.error["message"]
    executor.ended_pids = [1001]
    dispatcher.reconcile()
    assert store.view(session) == view and executor.killed_groups == []


def test_an_overdue_session_is_not_repeated(dispatcher, executor, store, session):
    make_overdue(store, session)
    dispatcher.reconcile()
    assert not store.requeue(session, StorageError("full"), attempt=1, max_attempts=3)


def test_a_cancelled_session_whose_worker_was_killed_records_the_reason(dispatcher, executor, store, session):
    store.request_cancel(session)
    dispatcher.reconcile()
    executor.ended_pids = [1001]
    dispatcher.reconcile()
    view = store.view(session)
    assert view.status == Status.CANCELLED
    assert view.error["message"].startswith("cancelled; the worker (pid 1001) ended without a result")


def test_a_worker_that_ended_is_reaped_again_after_a_storage_error(dispatcher, executor, store, session, monkeypatch):
    executor.ended_pids = [1001]
    with monkeypatch.context() as full_disk:
        full_disk.setattr(store, "requeue", lambda *_, **__: (_ for _ in ()).throw(StorageError("full")))
        with pytest.raises(StorageError):
            dispatcher.reconcile()
    dispatcher.reconcile()
    assert executor.jobs == [session, session]
    assert executor.killed_groups == [1001, 1001]  # the clean-up comes first, and is done again


def submit(store: Store, name: str) -> str:
    return store.submit(session_request(name, name), ONE_TASK)[0]


def error_of(store: Store, session: str) -> tuple[Status, str, str]:
    view = store.view(session)
    assert view.error
    return view.status, view.error["code"], view.error["message"]


def raising(error: Exception):
    def raise_it(*_, **__):
        raise error

    return raise_it


@pytest.mark.parametrize(
    "error, code, message",
    [
        (DatasetError("the file was moved"), "dataset", "the file was moved"),
        (ValueError("[x"), "server_error", "the session cannot be started: ValueError: [x"),
        (RecursionError("too deep"), "server_error", "the session cannot be started: RecursionError: too deep"),
    ],
)
@pytest.mark.parametrize("part", ["row", "executor"])
def test_whatever_is_raised_while_a_session_is_started_ends_it_and_frees_its_slot(
    dispatcher, executor, store, monkeypatch, part, error, code, message
):
    first, second = submit(store, "first"), submit(store, "second")
    with monkeypatch.context() as broken:
        if part == "row":
            broken.setattr(dispatcher, "_get_task", raising(error))
        else:
            broken.setattr(executor, "launch", raising(error))
        dispatcher.reconcile()
    assert error_of(store, first) == (Status.FAILED, code, message)
    dispatcher.reconcile()
    assert executor.jobs == [second]


def test_a_session_that_cannot_be_started_is_ended_again_after_a_storage_error(
    dispatcher, executor, store, monkeypatch
):
    session = submit(store, "first")
    with monkeypatch.context() as broken:
        broken.setattr(dispatcher, "_get_task", raising(ValueError("[x")))
        broken.setattr(store, "end_without_result", raising(StorageError("full")))
        with pytest.raises(StorageError):
            dispatcher.reconcile()
    dispatcher.reconcile()
    assert error_of(store, session)[:2] == (Status.FAILED, "server_error")


def test_a_launch_that_failed_is_repeated_where_that_may_help(dispatcher, executor, store):
    executor.holds_results = True
    session = submit(store, "first")
    dispatcher.reconcile()
    executor.results = [Launch(session, 1, failure=WorkerLost("the fork server died"))]
    executor.holds_results = False
    dispatcher.reconcile()
    assert executor.jobs == [session, session]
    executor.results = [Launch(session, 2, failure=ServerError("its class raised"))]
    dispatcher.reconcile()
    assert error_of(store, session) == (Status.FAILED, "server_error", "its class raised")


def test_no_session_is_admitted_while_no_worker_can_be_started(dispatcher, executor, store):
    session = submit(store, "first")
    executor.ready = False
    dispatcher.reconcile()
    assert store.view(session).status == Status.QUEUED
    executor.ready = True
    dispatcher.reconcile()
    assert store.view(session).status == Status.RUNNING


@pytest.mark.parametrize("reason", ["cancelled", "overdue"])
def test_a_session_whose_worker_is_being_started_can_be_stopped(dispatcher, executor, settings, store, reason):
    executor.holds_results = True
    first, second = submit(store, "first"), submit(store, "second")
    dispatcher.reconcile()
    if reason == "cancelled":
        store.request_cancel(first)
    else:
        make_overdue(store, first)
    dispatcher.reconcile()
    status, code, message = error_of(store, first)
    if reason == "cancelled":
        assert (status, code) == (Status.CANCELLED, "cancelled")
    else:
        assert (status, code) == (Status.FAILED, "server_error") and "outlasted" in message
    assert executor.jobs == [first, second] and executor.signals == []

    scratch = settings.scratch_dir / f"{first}.1"  # of the worker that comes all the same
    scratch.mkdir(parents=True)
    executor.holds_results = False
    dispatcher.reconcile()
    assert executor.signals == [(1001, signal.SIGKILL)]
    executor.ended_pids = [1001]
    dispatcher.reconcile()
    assert executor.killed_groups == [1001] and not scratch.exists()


def test_a_worker_that_hangs_before_it_has_registered_is_stopped(dispatcher, executor, store):
    session = submit(store, "first")
    dispatcher.reconcile()
    dispatcher.reconcile()
    assert store.list_active()[0]["worker_pid"] is None
    store.request_cancel(session)
    dispatcher.reconcile()
    assert executor.signals == [(1001, signal.SIGTERM)]
    dispatcher.reconcile()
    assert executor.signals == [(1001, signal.SIGTERM), (1001, signal.SIGKILL)]


def test_a_worker_that_has_not_registered_in_time_is_known_to_the_next_server(dispatcher, executor, store):
    submit(store, "first")
    dispatcher.reconcile()
    dispatcher.reconcile()
    with store.transaction() as db:
        db.execute("UPDATE sessions SET started_at = started_at - 10")
    dispatcher.reconcile()
    (row,) = store.list_active()
    assert (row["worker_pid"], row["worker_start_ticks"]) == (1001, 7) and executor.signals == []


def test_a_worker_that_cannot_be_watched_is_killed_and_its_session_fails(dispatcher, executor, store, monkeypatch):
    session = submit(store, "first")
    dispatcher.reconcile()
    with monkeypatch.context() as broken:
        broken.setattr(executor, "watch", raising(OSError("too many open files")))
        dispatcher.reconcile()
    assert executor.signals == [(1001, signal.SIGKILL)]
    assert error_of(store, session)[:2] == (Status.FAILED, "server_error")


def test_a_clean_up_that_fails_holds_no_slot(dispatcher, executor, store, session, monkeypatch):
    store.record_model_call(session, 1)
    second = submit(store, "second")
    monkeypatch.setattr(executor, "kill_group", raising(PermissionError("not permitted")))
    executor.ended_pids = [1001]
    dispatcher.reconcile()
    assert error_of(store, session)[:2] == (Status.FAILED, "worker_lost")
    assert executor.jobs == [session, second]
