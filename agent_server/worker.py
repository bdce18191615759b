"""One session from start to finish, in a process of its own.

The worker writes states and result into the store itself, so it needs nobody alive to finish. SIGTERM means: this
session is not wanted any more; the code unwinds, sandboxes close on the way, and the end is recorded.
Invariant: exactly one terminal record, and no process of the session outlives the worker.
"""

import ctypes
import logging
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent_server.agents import plug
from agent_server.agents.base import Agent, ModelEndpoint, Outcome
from agent_server.config import Settings
from agent_server.grading.base import NO_SUBMISSION, Grade, collect_diff, grade, prepare
from agent_server.sandboxes import apptainer
from agent_server.sandboxes.base import Sandbox
from agent_server.sandboxes.processes import look_up, reap_orphans
from agent_server.store.store import Fenced, Store
from agent_server.tasks.catalog import Task
from client.errors import AgentError, Cancelled, SandboxLimitExceeded, StackError, StorageError
from client.wire import Status

log = logging.getLogger(__name__)
PR_SET_CHILD_SUBREAPER = 36
AGENT_GRACE_S = 5.0  # beyond its own limit, which it checks only between turns
STORE_RETRY_S = 600.0  # a result waits this long for a full disk to be freed


class Stop(KeyboardInterrupt):
    """Raised in the main thread by a signal. A KeyboardInterrupt, since that is what libraries let through: handlers of
    Exception do not see it, and mini-swe-agent's retries, which catch everything else, do not repeat it."""


class Stopped(Stop):
    """SIGTERM: the session was cancelled."""


class AgentOutOfTime(Stop):
    """SIGALRM: the agent's time is over, in whatever call it is."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is told: which session and attempt, and everything of them that it needs."""

    session_id: str
    attempt: int
    base_url: str
    api_key: str
    task: Task


def run(job: Job, settings: Settings) -> None:
    """Run the session and record its end. Returns normally in every case that could be recorded."""
    _become_owner_of_descendants()
    store = Store(settings.work_dir)
    seconds: dict[str, float] = {}
    try:
        me = look_up(os.getpid())
        store.register_worker(job.session_id, job.attempt, me.pid, me.start_ticks)
        outcome, verdict = _work(job, settings, store, seconds)
        end = dict(
            status=Status.COMPLETED, agent_exit_status=outcome.exit_status, submission=outcome.submission,
            n_calls=outcome.n_calls, reward=verdict.reward, grade=verdict.as_dict(),
        )  # fmt: skip
    except Fenced as fenced:
        log.warning("%s", fenced)
        return
    except (Stopped, Cancelled):
        end = dict(status=Status.CANCELLED, error=Cancelled("cancelled while running").as_dict())
    except StackError as failure:
        end = dict(status=Status.FAILED, error=failure.as_dict())
    except Exception as unexpected:
        log.exception("session %s", job.session_id)
        end = dict(status=Status.FAILED, error=StackError(f"{type(unexpected).__name__}: {unexpected}"[:1000]).as_dict())
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    shutil.rmtree(_scratch(job, settings), ignore_errors=True)
    _record(store, job, {**end, "seconds": seconds})
    store.close()
    notify(settings.notify_address)


def _work(job: Job, settings: Settings, store: Store, seconds: dict[str, float]) -> tuple[Outcome, Grade]:
    agent = plug.load(settings)
    with _sandbox(job, settings, agent, seconds) as sandbox:
        prepare(job.task, sandbox)
        store.note(job.session_id, "agent_started", sandbox_start_s=seconds["sandbox_start"])
        with _timed(seconds, "agent"), _alarm(settings.agent_timeout_s + AGENT_GRACE_S):
            outcome = _run_agent(job, settings, agent, sandbox, seconds)
        if outcome.submitted and not outcome.submission.strip():
            outcome = _with_diff(outcome, sandbox)
    if not outcome.submission.strip():
        return outcome, NO_SUBMISSION
    store.begin_grading(job.session_id, job.attempt)
    with _timed(seconds, "grading"), _sandbox(job, settings, agent, seconds) as sandbox:
        return outcome, grade(job.task, outcome.submission, sandbox, timeout_s=settings.grading_timeout_s)


def _run_agent(job: Job, settings: Settings, agent: Agent, sandbox: Sandbox, seconds: dict[str, float]) -> Outcome:
    try:
        return agent.run(
            job.task.problem_statement,
            sandbox,
            ModelEndpoint(job.base_url, job.api_key, settings.model_timeout_s),
            agent_timeout_s=settings.agent_timeout_s,
            command_timeout_s=settings.command_timeout_s,
            trajectory=settings.trajectory_dir / f"{job.session_id}.json",
            seconds=seconds,
        )
    except AgentOutOfTime:
        raise AgentError(
            f"the agent did not end within {AGENT_GRACE_S:g} s after its limit of {settings.agent_timeout_s:g} s; "
            "a command or model call outlasted it: lower AGENT_SERVER_COMMAND_TIMEOUT_S or AGENT_SERVER_MODEL_TIMEOUT_S"
        ) from None


def _with_diff(outcome: Outcome, sandbox: Sandbox) -> Outcome:
    """What the agent left in its repository is its submission. What it left running may still exceed a limit."""
    try:
        return Outcome(outcome.exit_status, True, collect_diff(sandbox), outcome.n_calls)
    except SandboxLimitExceeded as exceeded:
        return Outcome.over_limit(exceeded, outcome.n_calls)


@contextmanager
def _sandbox(job: Job, settings: Settings, agent: Agent, seconds: dict[str, float]) -> Iterator[Sandbox]:
    scratch = _scratch(job, settings)
    _make_directory(scratch)
    started = time.monotonic()
    sandbox = apptainer.start(
        apptainer.image_path(settings.sif_dir, job.task.image_name),
        scratch=scratch, env=dict(getattr(agent, "sandbox_env", {})), start_timeout_s=settings.sandbox_start_timeout_s,
        limits=settings.sandbox_limits, network=settings.sandbox_network,
    )  # fmt: skip
    seconds["sandbox_start"] = seconds.get("sandbox_start", 0.0) + time.monotonic() - started
    try:
        yield sandbox
    finally:
        sandbox.close()
        reap_orphans()


def _scratch(job: Job, settings: Settings) -> Path:
    return settings.scratch_dir / f"{job.session_id}.{job.attempt}"


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        raise StorageError(f"cannot make {path}: {refused}; free space under the work directory") from refused


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        seconds[phase] = time.monotonic() - started


@contextmanager
def _alarm(after_s: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _record(store: Store, job: Job, end: dict) -> None:
    """Write the end; a disk that is full now may be freed soon, and a finished session must not be lost to it."""
    deadline = time.monotonic() + STORE_RETRY_S
    while True:
        try:
            return store.finish(job.session_id, job.attempt, **end)
        except Fenced as fenced:
            return log.warning("%s", fenced)
        except StorageError as refused:
            log.error("session %s: result waits: %s", job.session_id, refused)
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def _become_owner_of_descendants() -> None:
    """Orphans of the sandbox come to us to be reaped; signals become exceptions in the main thread."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def stop(_number, _frame):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once: a second signal must not interrupt the unwinding
        raise Stopped

    def out_of_time(_number, _frame):
        raise AgentOutOfTime

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGALRM, out_of_time)


def notify(address: str) -> None:
    """Wake the server. A lost notification costs a moment, so any failure is ignored here."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        try:
            sender.sendto(b".", address)
        except OSError:
            pass
