"""Groups of rollout sessions: launch in order, refill of sessions without a sample, cancellation at the end.

Invariant: when `run` returns or raises, none of its clients is alive and none of its sessions is open at the gateway.
One thread and one selector: the kernel wakes the trainer when a client ends, so hundreds of clients cost little.
"""

import secrets
import selectors
import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from client.errors import StackError
from trainer.engines.base import Sampling
from trainer.interrupts import Interrupts
from trainer.records import Group, Sample, Trace
from trainer.rollouts.process import ClientProcess, ClientSession
from trainer.rollouts.result import RolloutResult, to_result

TICK_S = 0.5


class RolloutGateway(Protocol):
    """The control calls that rollouts make to the gateway."""

    def open(self, session_id: str, key: str, sampling: Sampling) -> None: ...
    def close(self, session_id: str) -> Trace: ...
    def status(self) -> dict[str, dict]: ...


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of the client processes. `max_tries` bounds the sessions spent on one sample."""

    command: str
    base_url: str
    io_root: Path  # parent of the sessions' folders; exists only while they run
    env: Mapping[str, str]
    timeout_s: float
    kill_after_s: float  # between SIGTERM and SIGKILL: the time a client has to cancel its session
    max_clients: int
    max_tries: int
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class RolloutProgress:
    """Counts of one `run`.

    `waiting`: samples without a model call yet, launched or not. `running`: those with one. `rewards`: of the `done`.
    """

    waiting: int
    running: int
    done: int
    total: int
    refills: int
    rewards: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """Samples of one `run` by group, and the results of all sessions. A sample whose tries all failed is missing."""

    groups: tuple[Group, ...]
    results: tuple[RolloutResult, ...]
    refills: int

    @property
    def samples(self) -> list[Sample]:
        return [sample for group in self.groups for sample in group.samples]

    @property
    def failures(self) -> list[StackError]:
        return [result.failure for result in self.results if result.failure]


@dataclass(slots=True)
class _LaunchedClient:
    process: ClientProcess
    tries: int
    started: float  # time.monotonic
    kill_at: float | None = None  # time.monotonic of SIGKILL; set with SIGTERM, and only if the client is overdue


@dataclass(slots=True)
class _RunState:
    """The state of one `run`."""

    mode: str
    sampling: Sampling
    on_progress: Callable[[RolloutProgress], None]
    on_result: Callable[[RolloutResult], None]
    samples: dict[str, list[Sample]]  # by group id, in order of the groups
    pending: deque[tuple[str, int]]  # (group id, tries so far)
    total: int
    clients: dict[int, _LaunchedClient] = field(default_factory=dict)  # by pidfd
    results: list[RolloutResult] = field(default_factory=list)
    refills: int = 0


class RolloutManager:
    """Launches sessions and collects their results.

    `health_check` is called twice a second and may raise, for instance when a service has died.
    """

    def __init__(
        self,
        settings: ClientSettings,
        gateway: RolloutGateway,
        interrupts: Interrupts,
        health_check: Callable[[], None],
    ):
        self._settings = settings
        self._gateway = gateway
        self._interrupts = interrupts
        self._health_check = health_check

    def run(
        self,
        group_ids: Sequence[str],
        size: int,
        mode: str,
        sampling: Sampling,
        on_progress: Callable[[RolloutProgress], None],
        on_result: Callable[[RolloutResult], None],
    ) -> RolloutBatch:
        """Collect `size` samples for each group.

        Refills start before new sessions, so that groups complete early. New ones start in the order of `group_ids`.
        `on_result` receives the result of every session as it ends, `on_progress` the counts twice a second.
        Raises ModelUnreachable when the gateway does not answer, OSError when a client cannot be started, and what
        `health_check` raises.
        """
        pending = deque((group_id, 0) for group_id in group_ids for _ in range(size))
        samples: dict[str, list[Sample]] = {group_id: [] for group_id in group_ids}
        state = _RunState(mode, sampling, on_progress, on_result, samples, pending, len(pending))
        self._settings.io_root.mkdir(parents=True, exist_ok=True)
        try:
            with selectors.DefaultSelector() as selector:
                try:
                    self._collect(state, selector)
                finally:
                    with self._interrupts.deferred():
                        self._cancel_all(state, selector)
        finally:
            shutil.rmtree(self._settings.io_root, ignore_errors=True)
        groups = tuple(Group(group_id, tuple(members)) for group_id, members in samples.items())
        return RolloutBatch(groups, tuple(state.results), state.refills)

    def _collect(self, state: _RunState, selector: selectors.BaseSelector) -> None:
        next_tick = 0.0
        while state.pending or state.clients:
            while state.pending and len(state.clients) < self._settings.max_clients:
                self._launch(state, selector)
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + TICK_S
                self._interrupts.check()
                self._health_check()
                self._end_overdue(state)
                self._report_progress(state)
            for key, _ in selector.select(timeout=TICK_S):
                with self._interrupts.deferred():
                    self._finish(state, selector, key.fd)
        self._report_progress(state)

    def _launch(self, state: _RunState, selector: selectors.BaseSelector) -> None:
        settings = self._settings
        group_id, tries = state.pending.popleft()
        # The id is also the session's API key: the random part makes it unguessable.
        session = ClientSession(f"{group_id}.{secrets.token_hex(12)}", group_id, state.mode, settings.run_id)
        with self._interrupts.deferred():
            self._gateway.open(session.session_id, session.session_id, state.sampling)
            try:
                process = ClientProcess(session, settings.command, settings.base_url, settings.io_root, settings.env)
            except OSError:
                with suppress(StackError):  # the OSError is the fault to report
                    self._gateway.close(session.session_id)
                raise
            state.clients[process.fileno()] = _LaunchedClient(process, tries + 1, time.monotonic())
            selector.register(process.fileno(), selectors.EVENT_READ)

    def _finish(self, state: _RunState, selector: selectors.BaseSelector, pidfd: int) -> None:
        client = state.clients.pop(pidfd)
        selector.unregister(pidfd)
        # The rest of an overdue client's grace goes to its children, which may still be cancelling the session.
        overdue = client.kill_at is not None
        client_exit = client.process.close() if client.kill_at is None else client.process.close(client.kill_at)
        seconds = time.monotonic() - client.started
        trace = self._gateway.close(client.process.session.session_id)
        result = to_result(client.process.session, client_exit, trace, seconds, overdue)
        state.results.append(result)
        group_id = result.session.group_id
        if result.sample:
            state.samples[group_id].append(result.sample)
        elif client.tries < self._settings.max_tries:
            state.pending.appendleft((group_id, client.tries))
            state.refills += 1
        state.on_result(result)

    def _end_overdue(self, state: _RunState) -> None:
        now = time.monotonic()
        for client in state.clients.values():
            if client.kill_at is not None:
                if now > client.kill_at:
                    client.process.kill()
            elif now - client.started > self._settings.timeout_s:
                client.kill_at = now + self._settings.kill_after_s
                client.process.terminate()

    def _report_progress(self, state: _RunState) -> None:
        status = self._gateway.status()
        calling = 0
        for client in state.clients.values():
            calls = status.get(client.process.session.session_id, {})
            calling += bool(calls.get("n_calls") or calls.get("in_flight"))
        rewards = tuple(sample.reward for samples in state.samples.values() for sample in samples)
        waiting = len(state.pending) + len(state.clients) - calling
        state.on_progress(RolloutProgress(waiting, calling, len(rewards), state.total, state.refills, rewards))

    def _cancel_all(self, state: _RunState, selector: selectors.BaseSelector) -> None:
        """SIGTERM to every client, a grace period to cancel their sessions, SIGKILL to the rest.

        After a complete run no client is left and nothing happens.
        """
        for client in state.clients.values():
            client.process.terminate()
        deadline = time.monotonic() + self._settings.kill_after_s
        alive = set(state.clients)
        while alive and (left_s := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(timeout=left_s):
                selector.unregister(key.fd)
                alive.discard(key.fd)
        for client in state.clients.values():
            client.process.close(deadline)
            with suppress(StackError):  # teardown: if the gateway has failed, its sessions have ended with it
                self._gateway.close(client.process.session.session_id)
        state.clients.clear()
