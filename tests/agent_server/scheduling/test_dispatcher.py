"""The dispatcher stops overdue and cancelled workers, and frees a slot only when its worker is gone."""

import signal

import pytest

from agent_server.config import Settings
from agent_server.scheduling import dispatcher as dispatcher_module
from agent_server.scheduling.dispatcher import Dispatcher
from agent_server.store.store import Store
from agent_server.tasks.task import Task
from client.errors import Cancelled, StorageError
from client.wire import Status
from tests.agent_server.conftest import ONE_TASK, server_environment, session_request

SCRATCH_FILE = "left behind"


class FakeExecutor:
    """Executor whose workers are pids only. `ended_pids`: workers that end before the next pass."""

    ready = True

    def __init__(self):
        self.launched, self.signals, self.ended_pids, self.killed_groups = [], [], [], []

    def start(self):
        pass

    def launch(self, job):
        self.launched.append(job.session_id)
        return 1000 + len(self.launched)

    def watch(self, pid, start_ticks=None):
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
    assert store.view(session).status == Status.RUNNING and executor.launched == [session]

    executor.ended_pids = [1001]
    assert dispatcher.reconcile() == dispatcher_module.IDLE_S
    view = store.view(session)
    assert (view.status, view.error["code"]) == (Status.FAILED, "server_error")
    assert "outlasted AGENT_SERVER_SESSION_TIMEOUT_S=3600" in view.error["message"]
    assert executor.killed_groups == [1001] and not list(settings.scratch_dir.iterdir())
    assert executor.launched == [session, second]


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
    assert executor.launched == [session, session]
    assert executor.killed_groups == [1001, 1001]  # the clean-up comes first, and is done again
