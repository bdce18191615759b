"""Interleavings of trainers, workers, cancels, losses and restarts, against the invariants of the store.

A state machine plays every party against the real store on disk, one step at a time, in orders that hypothesis chooses.
"""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from agent_server.scheduling.scheduler import free_slots, select_admissions
from agent_server.store.store import Fenced, Store
from agent_server.tasks.order import TaskOrder
from client.errors import Cancelled, SandboxStartFailed, WorkerLost
from client.wire import Status
from tests.agent_server.conftest import ONE_TASK, session_request

MODES = ("train", "eval")
MAX_ATTEMPTS = 3
OTHER_TASK = TaskOrder({"train": ["other"], "eval": ["other"]}, seed=0)


class Sessions(RuleBasedStateMachine):
    """`workers`: (session, attempt) pairs that may still act, also long after their session was ended."""

    workers = Bundle("workers")

    @initialize()
    def open(self):
        self.folder = Path(tempfile.mkdtemp())
        self.store = Store(self.folder)
        self.limits = {"train": 2, "eval": 1}
        self.sent: dict[str, str] = {}  # session -> mode, in order of arrival
        self.cancelled: set[str] = set()
        self.ends: dict[str, object] = {}  # session -> its terminal view
        self.started: dict[str, list[str]] = {mode: [] for mode in MODES}  # first admissions, in order

    @rule(mode=st.sampled_from(MODES))
    def send(self, mode):
        name = f"s{len(self.sent)}"
        session, status = self.store.submit(session_request(name, name, mode), ONE_TASK)
        assert status == Status.QUEUED
        assert self.store.submit(session_request(name, name, mode), OTHER_TASK)[0] == session
        self.sent[session] = mode

    @rule(target=workers)
    def dispatch(self):
        admitted = []
        running = {mode: sum(row["mode"] == mode for row in self.store.list_active()) for mode in MODES}
        free = free_slots(running, self.limits)
        queued = {mode: self.store.list_queued(mode, slots) for mode, slots in free.items()}
        for session in select_admissions(queued, free):
            row = self.store.admit(session)
            assert row is not None, "one party dispatches: what was queued a moment ago still is"
            if row["attempt"] == 1:
                self.started[row["mode"]].append(session)
            admitted.append((session, row["attempt"]))
        for mode, limit in self.limits.items():
            now = sum(row["mode"] == mode for row in self.store.list_active())
            assert now <= max(limit, running[mode]), "over the limit"
            if any(session in self.sent for session in self.store.list_queued(mode, 1)):
                assert now >= limit, "an idle slot while a session is queued"
        return multiple(*admitted)

    @rule(data=st.data())
    def cancel(self, data):
        if self.sent:
            session = data.draw(st.sampled_from([*self.sent]))  # by place: ids are random
            self.store.request_cancel(session)
            self.cancelled.add(session)
            assert self.store.admit(session) is None, "a cancelled session is never started"

    @rule(worker=workers, pid=st.integers(2, 9))
    def register(self, worker, pid):
        self._act(worker, lambda: self.store.register_worker(*worker, pid, pid))

    @rule(worker=workers)
    def call_model(self, worker):
        self._act(worker, lambda: self.store.record_model_call(*worker))

    @rule(worker=workers)
    def wait_for_semaphore(self, worker):
        self._act(worker, lambda: (self.store.begin_wait(*worker, "gradings"), self.store.end_wait(*worker)))

    @rule(worker=workers)
    def grade(self, worker):
        self._act(worker, lambda: self.store.begin_grading(*worker))

    @rule(worker=workers, reward=st.sampled_from([0.0, 1.0]))
    def complete(self, worker, reward):
        self._act(worker, lambda: self.store.finish(*worker, Status.COMPLETED, reward=reward))

    @rule(worker=workers)
    def end_as_cancelled(self, worker):
        if worker[0] in self.cancelled:
            self._act(worker, lambda: self.store.finish(*worker, Status.CANCELLED, error=Cancelled("asked").as_dict()))

    @rule(worker=workers)
    def fail_to_start(self, worker):
        session, attempt = worker
        called = self.store.read("SELECT model_called FROM sessions WHERE id = ?", session)[0][0]
        if self.store.requeue(session, SandboxStartFailed("no"), attempt=attempt, max_attempts=MAX_ATTEMPTS):
            assert session not in self.cancelled and not called and attempt < MAX_ATTEMPTS
            assert self.store.view(session).status == Status.QUEUED

    @rule(worker=consumes(workers))
    def die(self, worker):
        self.store.end_without_result(worker[0], WorkerLost("gone"), attempt=worker[1])

    @rule(mode=st.sampled_from(MODES), limit=st.integers(1, 4))
    def change_limit(self, mode, limit):
        self.limits[mode] = limit

    @rule()
    def restart(self):
        self.store.close()
        self.store = Store(self.folder)

    def _act(self, worker, act):
        """The current attempt of an active session may act; any other is fenced."""
        view, attempt = (
            self.store.view(worker[0]),
            self.store.read("SELECT attempt FROM sessions WHERE id = ?", worker[0])[0][0],
        )
        may = view.status in (Status.RUNNING, Status.GRADING) and attempt == worker[1]
        try:
            act()
        except Fenced:
            # A worker registers while its session runs, not when it is graded already.
            assert not may or view.status == Status.GRADING
        except Cancelled:
            assert worker[0] in self.cancelled and may
        else:
            assert may, "an attempt that was over could still write"

    @invariant()
    def an_end_is_final_and_a_reward_means_completed(self):
        for session in getattr(self, "sent", ()):
            view = self.store.view(session)
            assert (view.reward is not None) == (view.status == Status.COMPLETED)
            assert self.ends.get(session, view) == view
            if view.status.terminal:
                self.ends[session] = view

    @invariant()
    def first_starts_are_in_order_of_arrival(self):
        for mode, started in getattr(self, "started", {}).items():
            arrived = [session for session in self.sent if self.sent[session] == mode and session in started]
            assert started == arrived

    def teardown(self):
        """No session starves: when every worker completes, every session ends, and cancelled ones end without a reward
        unless they had it before."""
        for _ in range(MAX_ATTEMPTS * len(self.sent) + 1):
            self.dispatch()
            for row in self.store.list_active():
                if row["id"] in self.cancelled:
                    self.store.end_without_result(row["id"], WorkerLost("gone"), attempt=row["attempt"])
                else:
                    self.store.finish(row["id"], row["attempt"], Status.COMPLETED, reward=0.0)
        views = [self.store.view(session) for session in self.sent]
        assert all(view.status.terminal for view in views)
        events = [(row["session_id"], row["name"]) for row in self.store.read("SELECT session_id, name FROM events")]
        for view in views:
            assert (
                sum(
                    session == view.session_id and Status(name).terminal
                    for session, name in events
                    if name in list(Status)
                )
                == 1
            )
        self.store.close()
        shutil.rmtree(self.folder)


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
