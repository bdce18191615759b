"""Runs groups of sessions: launches clients in order, refills infrastructure failures, and ends all of them on the way out.

Invariant: when `run` returns or raises, no client that it launched is alive and no session of its is open at the gateway.
One thread, one selector: each client is a process that the kernel wakes us for, so hundreds cost next to nothing.
"""

import secrets
import selectors
import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from client.errors import StackError
from trainer.engines.base import Sampling
from trainer.interrupts import Interrupts
from trainer.records import Group, Sample, Trace
from trainer.rollouts.process import ClientProcess, Session
from trainer.rollouts.result import RolloutResult, to_result

TICK_S = 0.5


class Gateway(Protocol):
    """What rollouts need of the gateway's control side."""

    def open(self, session_id: str, key: str, sampling: Sampling) -> None: ...
    def close(self, session_id: str) -> Trace: ...
    def status(self) -> dict[str, dict]: ...


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How sessions are launched. `max_tries` counts the sessions that one sample may cost."""

    command: str
    base_url: str
    io_root: Path  # a folder for the sessions' own; exists only while they run
    env: Mapping[str, str]
    timeout_s: float
    kill_after_s: float  # between SIGTERM and SIGKILL: the time a client has to cancel its session
    max_clients: int
    max_tries: int
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the sessions of one `run` stand: `queued` have made no model call yet. `rewards` are those of the done."""

    queued: int
    running: int
    done: int
    total: int
    refills: int
    rewards: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rollouts:
    """What `run` brings home: groups in order (a sample that no try could get is missing from its group), every attempt."""

    groups: tuple[Group, ...]
    attempts: tuple[RolloutResult, ...]
    refills: int

    @property
    def samples(self) -> list[Sample]:
        return [sample for group in self.groups for sample in group.samples]

    @property
    def failures(self) -> list[StackError]:
        return [attempt.failure for attempt in self.attempts if attempt.failure]


@dataclass(slots=True)
class _Running:
    process: ClientProcess
    tries: int
    started: float
    kill_at: float = float("inf")  # set when SIGTERM was sent
    overdue: bool = False


@dataclass(slots=True)
class _Batch:
    """The state of one `run`."""

    mode: str
    sampling: Sampling
    on_progress: Callable[[Progress], None]
    on_result: Callable[[RolloutResult], None]
    samples: dict[str, list[Sample]]  # by group id, in order of the groups
    waiting: deque[tuple[str, int]]  # (group id, tries so far)
    total: int
    running: dict[int, _Running] = field(default_factory=dict)  # by pidfd
    attempts: list[RolloutResult] = field(default_factory=list)
    refills: int = 0


class RolloutManager:
    """Launches and collects sessions. `watch` is called twice a second and may raise, for instance when a service died."""

    def __init__(
        self,
        settings: ClientSettings,
        gateway: Gateway,
        interrupts: Interrupts,
        watch: Callable[[], None],
    ):
        self._settings = settings
        self._gateway = gateway
        self._interrupts = interrupts
        self._watch = watch

    def run(
        self,
        group_ids: Sequence[str],
        size: int,
        mode: str,
        sampling: Sampling,
        on_progress: Callable[[Progress], None],
        on_result: Callable[[RolloutResult], None],
    ) -> Rollouts:
        """Get `size` samples for each group. Sessions start in the order of `group_ids`, a group's together; a refill
        goes first, since its group is the one waited for. `on_result` gets every attempt as it ends, `on_progress`
        the state twice a second. Raises ModelUnreachable when the gateway is gone, and whatever `watch` raises."""
        waiting = deque((group_id, 0) for group_id in group_ids for _ in range(size))
        samples = {group_id: [] for group_id in group_ids}
        batch = _Batch(mode, sampling, on_progress, on_result, samples, waiting, len(waiting))
        self._settings.io_root.mkdir(parents=True, exist_ok=True)
        try:
            with selectors.DefaultSelector() as selector:
                try:
                    self._collect(batch, selector)
                finally:
                    with self._interrupts.deferred():
                        self._discard_all(batch, selector)
        finally:
            shutil.rmtree(self._settings.io_root, ignore_errors=True)
        groups = tuple(Group(group_id, tuple(samples)) for group_id, samples in batch.samples.items())
        return Rollouts(groups, tuple(batch.attempts), batch.refills)

    def _collect(self, batch: _Batch, selector: selectors.BaseSelector) -> None:
        next_tick = 0.0
        while batch.waiting or batch.running:
            while batch.waiting and len(batch.running) < self._settings.max_clients:
                self._launch(batch, selector)
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + TICK_S
                self._interrupts.check()
                self._watch()
                self._end_overdue(batch)
                self._report(batch)
            for key, _ in selector.select(timeout=TICK_S):
                with self._interrupts.deferred():
                    self._finish(batch, selector, key.fd)
        self._report(batch)

    def _launch(self, batch: _Batch, selector: selectors.BaseSelector) -> None:
        settings = self._settings
        group_id, tries = batch.waiting.popleft()
        # The id is the session's key as well: the part after the dot cannot be guessed.
        session = Session(f"{group_id}.{secrets.token_hex(12)}", group_id, batch.mode, settings.run_id)
        with self._interrupts.deferred():
            self._gateway.open(session.session_id, session.session_id, batch.sampling)
            process = ClientProcess(session, settings.command, settings.base_url, settings.io_root, settings.env)
            batch.running[process.fileno()] = _Running(process, tries + 1, time.monotonic())
            selector.register(process.fileno(), selectors.EVENT_READ)

    def _finish(self, batch: _Batch, selector: selectors.BaseSelector, pidfd: int) -> None:
        running = batch.running.pop(pidfd)
        selector.unregister(pidfd)
        exit = running.process.close(running.kill_at if running.overdue else 0.0)
        seconds = time.monotonic() - running.started
        trace = self._gateway.close(running.process.session.session_id)
        finished = to_result(running.process.session, exit, trace, seconds, running.overdue)
        batch.attempts.append(finished)
        group_id = finished.session.group_id
        if finished.sample:
            batch.samples[group_id].append(finished.sample)
        elif running.tries < self._settings.max_tries:
            batch.waiting.appendleft((group_id, running.tries))
            batch.refills += 1
        batch.on_result(finished)

    def _end_overdue(self, batch: _Batch) -> None:
        now = time.monotonic()
        for running in batch.running.values():
            if now > running.kill_at:
                running.process.kill()
            elif not running.overdue and now - running.started > self._settings.timeout_s:
                running.overdue = True
                running.kill_at = now + self._settings.kill_after_s
                running.process.terminate()

    def _report(self, batch: _Batch) -> None:
        status = self._gateway.status()
        calling = 0
        for running in batch.running.values():
            seen = status.get(running.process.session.session_id, {})
            calling += bool(seen.get("n_calls") or seen.get("in_flight"))
        rewards = tuple(sample.reward for samples in batch.samples.values() for sample in samples)
        queued = len(batch.waiting) + len(batch.running) - calling
        batch.on_progress(Progress(queued, calling, len(rewards), batch.total, batch.refills, rewards))

    def _discard_all(self, batch: _Batch, selector: selectors.BaseSelector) -> None:
        """SIGTERM to every client, time to cancel their sessions, SIGKILL to the rest. Nothing to do after a full run."""
        for running in batch.running.values():
            running.process.terminate()
        deadline = time.monotonic() + self._settings.kill_after_s
        alive = set(batch.running)
        while alive and (left_s := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(timeout=left_s):
                selector.unregister(key.fd)
                alive.discard(key.fd)
        for running in batch.running.values():
            running.process.close(deadline)
            try:
                self._gateway.close(running.process.session.session_id)
            except StackError:
                pass  # teardown: the gateway may be what failed, and its sessions end with it
        batch.running.clear()
