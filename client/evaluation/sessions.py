"""The sessions of a batch: so many at once, each from its create to its record.

Invariant: what the endpoint, the sandbox or the server spoiled is recorded as failed, never with a reward; however a run ends, no session
of it is left running on a server that answers.
"""

import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable

from client.api import AgentServerClient
from client.errors import Cancelled, EndpointFailed, ModelError, NotFound, ServerError, StackError
from client.evaluation.endpoint import CallerGone
from client.evaluation.relay import Relay, Talk
from client.evaluation.results import Book, Record, Sample
from client.evaluation.verdicts import STOPPING
from client.wire import SessionRequest, SessionView, Status

LOOK_S = 0.2
STOP_GRACE_S = 30.0  # for cancelled sessions to end; a server that does not answer gets no more
CANCEL_OUTAGE_S = 3.0  # a server that is gone must not hold up the end
LOST_SHARE = 0.1  # of the agent's time, spent waiting for the endpoint: a session that then ran out of time is not the model's failure
FEWEST_IN_A_ROW = 3


class Sessions:
    """Runs samples, `concurrency` at a time. `after` is called after each record, in any thread, one at a time."""

    def __init__(
        self,
        server: Callable[..., AgentServerClient],
        relay: Relay,
        book: Book,
        *,
        concurrency: int,
        after: Callable[[Record], None],
    ):
        """`server` makes a client of the agent server; it takes `outage_s`."""
        self._server, self._relay, self._book = server, relay, book
        self._concurrency, self._after = concurrency, after
        self._lock = threading.Lock()
        self._faults_in_a_row = 0
        self._stopped: BaseException | None = None

    def run(self, samples: list[Sample]) -> None:
        """Returns when all have a record. Raises what stopped it, KeyboardInterrupt included, once no session runs any more."""
        waiting = deque(samples)
        threads = [
            threading.Thread(target=self._work, args=(waiting,), daemon=True)
            for _ in range(min(self._concurrency, len(samples)))
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive() and not self._stopped:
                    thread.join(LOOK_S)
        except KeyboardInterrupt as interrupt:
            self._stop(interrupt)
        if self._stopped:
            deadline = time.monotonic() + STOP_GRACE_S
            for thread in threads:
                if thread.is_alive():
                    thread.join(max(0.0, deadline - time.monotonic()))
            raise self._stopped

    def cancel_left_open(self) -> None:
        """Cancel what a killed run left on the server: its model calls go nowhere."""
        for session_id in self._book.sessions_left_open():
            try:
                self._server().cancel(session_id)
            except NotFound:
                pass  # forgotten meanwhile
        self._book.close_sessions()

    def _work(self, waiting: deque[Sample]) -> None:
        while not self._stopped:
            try:
                sample = waiting.popleft()
            except IndexError:
                return
            self._one(sample)

    def _one(self, sample: Sample) -> None:
        try:
            self._relay.endpoint.wait_open(self._is_stopped)
            with self._relay.talk(self._on_fault) as talk:
                record = None if self._is_stopped() else self._session(sample, talk)
            if record:
                with self._lock:
                    self._book.add(record, talk.conversation)
                    self._after(record)
                    self._faults_in_a_row = self._faults_in_a_row + 1 if talk.fault else 0
                    down = self._faults_in_a_row >= max(FEWEST_IN_A_ROW, self._concurrency)
                if down:
                    told = f"the endpoint failed {self._faults_in_a_row} samples in a row; run the same command again when it is well"
                    raise EndpointFailed(f"{told}: {talk.fault}")
        except CallerGone:
            pass  # stopped before it began
        except BaseException as reason:
            self._stop(reason)

    def _session(self, sample: Sample, talk: Talk) -> Record | None:
        """Raises StackError of the agent server."""
        server = self._server()
        session_id = server.create(
            SessionRequest(
                session_id=uuid.uuid4().hex, group_id=sample.task_id, mode=self._book.settings.split, task_id=sample.task_id,
                base_url=self._relay.url, api_key=talk.key, run_id=self._book.run_id,
            )
        )  # fmt: skip
        talk.began(lambda: self._cancel(session_id))
        with self._lock:
            self._book.began(session_id)
        view = server.wait(session_id, timeout_s=math.inf)
        if self._is_stopped() and view.status is not Status.COMPLETED and not talk.fault:
            return None
        return record_of(sample, view, talk)

    def _cancel(self, session_id: str) -> None:
        try:
            self._server(outage_s=CANCEL_OUTAGE_S).cancel(session_id)
        except StackError:
            pass  # the server is gone, or has forgotten it; the relay answers that session nothing more

    def _on_fault(self, fault: ModelError) -> None:
        if isinstance(fault, STOPPING):
            self._stop(fault)

    def _stop(self, reason: BaseException) -> None:
        with self._lock:
            first, self._stopped = self._stopped is None, self._stopped or reason
        if first:
            self._relay.end_all()

    def _is_stopped(self) -> bool:
        return self._stopped is not None


def record_of(sample: Sample, view: SessionView, talk: Talk) -> Record:
    """What is kept of a session that has ended."""
    record = Record(
        task_id=sample.task_id, sample=sample.index, session_id=view.session_id, status="failed", calls=talk.calls,
        prompt_tokens=talk.prompt_tokens, completion_tokens=talk.completion_tokens, lost_s=round(talk.lost_s, 3), seconds=view.seconds,
    )  # fmt: skip
    if error := failure_of(view, talk):
        return record.model_copy(update={"error": error})
    graded = (view.grade or {}).get("resolved")
    resolved = graded if isinstance(graded, bool) else view.reward >= 1.0
    end = {"status": "completed", "reward": view.reward, "resolved": resolved, "exit_status": view.agent_exit_status}
    return record.model_copy(update=end | {"submission": view.submission or ""})


def failure_of(view: SessionView, talk: Talk) -> dict | None:
    """The infrastructure's failure that ended the session, or None where its result is the model's own.

    A session that ran out of time after waiting for the endpoint for more than a tenth of the agent's time was failed by the endpoint.
    """
    if talk.fault:
        return talk.fault.as_dict()
    if view.status is Status.COMPLETED:
        waited = talk.lost_s > LOST_SHARE * view.seconds.get("agent", math.inf)
        if view.agent_exit_status == "TimeExceeded" and waited:
            return EndpointFailed(
                f"the agent's time ran out, {talk.lost_s:.0f} s of it waiting for the endpoint"
            ).as_dict()
        return (
            None
            if view.reward is not None
            else ServerError("the server calls the session completed and gives no reward").as_dict()
        )
    error = view.error or Cancelled("the session was cancelled, not by this batch").as_dict()
    pending = talk.pending
    if isinstance(pending, ModelError) and error.get("boundary") == ModelError.boundary:
        return pending.as_dict()  # the agent gave up on a call that was waiting this out
    return error
