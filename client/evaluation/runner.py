"""Runs the samples of an evaluation as sessions of an agent server, a bounded number at a time.

Invariant: a fault of the endpoint, the sandbox or the server is recorded as failed, never with a reward. A run
that ends leaves no running session on a server that responds; what kill -9 leaves, the next run cancels.
"""

import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from client.api import AgentServerClient
from client.errors import Cancelled, EndpointFailed, ModelError, NotFound, ServerError, StackError
from client.evaluation.endpoint import ClientDisconnected
from client.evaluation.relay import ModelSession, Relay
from client.evaluation.replies import RUN_ENDING
from client.evaluation.results import EvaluationSample, Record, ResultStore
from client.wire import SessionRequest, SessionView, Status

POLL_S = 0.2
STOP_GRACE_S = 30.0  # for cancelled sessions to end, if the server responds
CANCEL_OUTAGE_S = 3.0  # for a cancel, so that a dead server does not delay the end
# Of the agent's time: a session that waited longer for the endpoint and then ran out of time is the endpoint's failure.
MAX_DELAY_SHARE = 0.1
MIN_FAULTS_IN_A_ROW = 3


class SampleRunner:
    """Runs samples, `concurrency` at a time."""

    def __init__(
        self,
        make_client: Callable[..., AgentServerClient],
        relay: Relay,
        store: ResultStore,
        *,
        concurrency: int,
        on_record: Callable[[Record], None],
    ):
        """`make_client` takes `outage_s`. `on_record` is called under a lock."""
        self._make_client, self._relay, self._store = make_client, relay, store
        self._concurrency, self._on_record = concurrency, on_record
        self._lock = threading.Lock()
        self._faults_in_a_row = 0
        self._stopped: BaseException | None = None

    def run(self, samples: list[EvaluationSample]) -> None:
        """Run samples until each has a record.

        Raises the error that stopped the run, KeyboardInterrupt included, once its sessions have ended.
        """
        queue = deque(samples)
        threads = [
            threading.Thread(target=self._work, args=(queue,), daemon=True)
            for _ in range(min(self._concurrency, len(samples)))
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive() and not self._stopped:
                    thread.join(POLL_S)
        except KeyboardInterrupt as interrupt:
            self._stop(interrupt)
        if self._stopped:
            deadline = time.monotonic() + STOP_GRACE_S
            for thread in threads:
                if thread.is_alive():
                    thread.join(max(0.0, deadline - time.monotonic()))
            raise self._stopped

    def cancel_open_sessions(self) -> None:
        """Cancel the sessions that a killed run left on the server: no relay serves their model calls any more."""
        for session_id in self._store.open_sessions():
            with suppress(NotFound):  # deleted meanwhile
                self._make_client().cancel(session_id)
        self._store.clear_open_sessions()

    def _work(self, queue: deque[EvaluationSample]) -> None:
        while not self._stopped:
            try:
                sample = queue.popleft()
            except IndexError:
                return
            self._run_sample(sample)

    def _run_sample(self, sample: EvaluationSample) -> None:
        try:
            self._relay.endpoint.wait_for_rate_limit(self._is_stopped)
            with self._relay.open_session(self._on_fault) as model_session:
                record = None if self._is_stopped() else self._run_session(sample, model_session)
            if record:
                with self._lock:
                    self._store.add(record, model_session.conversation)
                    self._on_record(record)
                    self._faults_in_a_row = self._faults_in_a_row + 1 if model_session.fault else 0
                    is_failing = self._faults_in_a_row >= max(MIN_FAULTS_IN_A_ROW, self._concurrency)
                if is_failing:
                    problem = f"the endpoint failed {self._faults_in_a_row} samples in a row"
                    remedy = "run the same command again once it works"
                    self._stop(EndpointFailed(f"{problem}; {remedy}: {model_session.fault}"))
        except ClientDisconnected:
            pass  # stopped before the session began
        except BaseException as reason:  # it ends the run; `run` raises it
            self._stop(reason)

    def _run_session(self, sample: EvaluationSample, model_session: ModelSession) -> Record | None:
        """The sample's record, None if the run was stopped. Raises StackError of the agent server."""
        client = self._make_client()
        session_id = client.create(
            SessionRequest(
                session_id=uuid.uuid4().hex, group_id=sample.task_id, mode=self._store.settings.split,
                task_id=sample.task_id, base_url=self._relay.url, api_key=model_session.key, run_id=self._store.run_id,
            )
        )  # fmt: skip
        model_session.attach(lambda: self._cancel(session_id))
        with self._lock:
            self._store.add_open_session(session_id)
        view = client.wait(session_id, timeout_s=math.inf)
        if self._is_stopped() and view.status is not Status.COMPLETED and not model_session.fault:
            return None
        return make_record(sample, view, model_session)

    def _cancel(self, session_id: str) -> None:
        # The server is away or has deleted the session; either way the relay serves it no more.
        with suppress(StackError):
            self._make_client(outage_s=CANCEL_OUTAGE_S).cancel(session_id)

    def _on_fault(self, fault: ModelError) -> None:
        if isinstance(fault, RUN_ENDING):
            self._stop(fault)

    def _stop(self, reason: BaseException) -> None:
        with self._lock:
            first = self._stopped is None
            self._stopped = self._stopped or reason
        if first:
            self._relay.end_all()

    def _is_stopped(self) -> bool:
        return self._stopped is not None


def make_record(sample: EvaluationSample, view: SessionView, model_session: ModelSession) -> Record:
    """The record of a session that has ended."""
    record = Record(
        task_id=sample.task_id, sample=sample.index, session_id=view.session_id, status="failed",
        calls=model_session.calls, prompt_tokens=model_session.prompt_tokens,
        completion_tokens=model_session.completion_tokens, lost_s=round(model_session.delay_s, 3), seconds=view.seconds,
    )  # fmt: skip
    if error := classify_failure(view, model_session):
        return record.model_copy(update={"error": error})
    graded = (view.grade or {}).get("resolved")
    resolved = graded if isinstance(graded, bool) else (view.reward or 0.0) >= 1.0
    end = {"status": "completed", "reward": view.reward, "resolved": resolved, "exit_status": view.agent_exit_status}
    return record.model_copy(update=end | {"submission": view.submission or ""})


def classify_failure(view: SessionView, model_session: ModelSession) -> dict[str, Any] | None:
    """The infrastructure's failure that ended the session; None if the result is the model's own.

    A session that ran out of time after losing more than a tenth of the agent's time to the endpoint is the endpoint's.
    """
    if model_session.fault:
        return model_session.fault.as_dict()
    if view.status is Status.COMPLETED:
        delayed_too_long = model_session.delay_s > MAX_DELAY_SHARE * view.seconds.get("agent", math.inf)
        if view.agent_exit_status == "TimeExceeded" and delayed_too_long:
            message = (
                f"the agent's time ran out; {model_session.delay_s:.0f} s of it went into waiting for the endpoint"
            )
            return EndpointFailed(message).as_dict()
        if view.reward is None:
            return ServerError("the server completed the session without a reward").as_dict()
        return None
    error = view.error or Cancelled("the session was cancelled, but not by this evaluation").as_dict()
    pending = model_session.pending_fault
    if isinstance(pending, ModelError) and error.get("boundary") == ModelError.boundary:
        return pending.as_dict()  # the agent gave up on a call that was waiting this fault out
    return error
