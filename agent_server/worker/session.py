"""One session from start to finish, in a process of its own.

The worker writes states and result into the store itself, so it needs nobody alive to finish. SIGTERM means: this
session is not wanted any more; the code unwinds, sandboxes close on the way, and the end is recorded.
Invariant: exactly one terminal record, and no process of the session outlives the worker.
"""

import ctypes
import errno
import logging
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from agent_server.agents.base import AgentResult, ModelEndpoint
from agent_server.agents.registry import load_agent
from agent_server.config import Settings
from agent_server.grading import repository, reward
from agent_server.grading.base import NO_SUBMISSION, Grade, Rules, grade
from agent_server.grading.datasets import registry as datasets
from agent_server.grading.datasets.base import REPOSITORY
from agent_server.sandboxes import apptainer
from agent_server.sandboxes.base import Sandbox
from agent_server.sandboxes.binds import parse_binds
from agent_server.sandboxes.processes import read_process, reap_orphans
from agent_server.scheduling.file_semaphore import FileSemaphore
from agent_server.store.store import Fenced, Store
from agent_server.tasks.task import Task
from client.errors import (
    AgentError,
    Cancelled,
    DiskFull,
    OutOfMemory,
    SandboxLimitExceeded,
    SandboxStartFailed,
    StackError,
    StorageError,
)
from client.wire import Status

log = logging.getLogger(__name__)
PR_SET_CHILD_SUBREAPER = 36
AGENT_GRACE_S = 5.0  # beyond its own limit, which it checks only between turns
MOST_ATTEMPTS = 3
STORE_RETRY_S = 600.0  # a record waits this long for a full disk to be freed


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


@dataclass(slots=True)
class Costs:
    """What the session took: wall seconds a phase, CPU seconds of the worker a phase and of each sandbox, and the most memory
    that a sandbox held at a time."""

    seconds: dict[str, float] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    peak_memory_bytes: int = 0

    @contextmanager
    def of(self, phase: str) -> Iterator[None]:
        started, cpu_before = time.monotonic(), time.process_time()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - started
            self.cpu_seconds[phase] = self.cpu_seconds.get(phase, 0.0) + time.process_time() - cpu_before


def run(job: Job, settings: Settings) -> None:
    """Run the session and record its end. Returns normally in every case that could be recorded."""
    _become_owner_of_descendants()
    store = Store(settings.work_dir)
    costs = Costs()
    try:
        me = read_process(os.getpid())
        store.register_worker(job.session_id, job.attempt, me.pid, me.start_ticks)
        outcome, verdict = _Session(job, settings, store, costs).work()
        end = dict(
            status=Status.COMPLETED, agent_exit_status=outcome.exit_status, submission=outcome.submission,
            n_calls=outcome.n_calls, reward=_reward(verdict, outcome, settings), grade=verdict.as_dict(),
        )  # fmt: skip
    except Fenced as fenced:
        log.warning("%s", fenced)
        shutil.rmtree(_scratch(job, settings), ignore_errors=True)
        return
    except (Stopped, Cancelled):
        end = dict(status=Status.CANCELLED, error=Cancelled("cancelled while running").as_dict())
    except StackError as failure:
        shutil.rmtree(_scratch(job, settings), ignore_errors=True)
        if failure.transient and store.requeue(
            job.session_id, failure, attempt=job.attempt, most_attempts=MOST_ATTEMPTS
        ):
            return notify(settings.notify_address)
        end = dict(status=Status.FAILED, error=failure.as_dict())
    except MemoryError as short:
        end = dict(
            status=Status.FAILED,
            error=OutOfMemory(f"the worker found no memory ({short}); lower the limits or add memory").as_dict(),
        )
    except Exception as unexpected:
        log.exception("session %s", job.session_id)
        end = dict(
            status=Status.FAILED, error=StackError(f"{type(unexpected).__name__}: {unexpected}"[:1000]).as_dict()
        )
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    shutil.rmtree(_scratch(job, settings), ignore_errors=True)
    try:
        _patiently(lambda: store.finish(job.session_id, job.attempt, **end, **asdict(costs)))
    except Fenced as fenced:
        log.warning("%s", fenced)
    store.close()
    notify(settings.notify_address)


class _Session:
    """The way through one session: sandbox, agent, submission, fresh sandbox, grade."""

    def __init__(self, job: Job, settings: Settings, store: Store, costs: Costs):
        self._job, self._settings, self._store, self._costs = job, settings, store, costs
        self._agent = load_agent(settings)
        self._dataset = datasets.load(job.task.dataset)

    def work(self) -> tuple[AgentResult, Grade]:
        in_same = self._settings.grading_sandbox == "same"
        with self._sandbox("commands") as sandbox:
            with self._costs.of("prepare"):
                begun = repository.prepare(self._dataset, self._job.task, sandbox, keep=in_same)
            outcome = self._work_in(sandbox)
            if in_same and outcome.submission.strip():
                self._begin_grading()
                with self._gate("gradings"):
                    return outcome, self._grade(outcome.submission, sandbox, begun)
        if not outcome.submission.strip():
            return outcome, NO_SUBMISSION
        self._begin_grading()
        with self._gate("gradings"), self._sandbox("tests") as sandbox:
            return outcome, self._grade(outcome.submission, sandbox, None)

    def _work_in(self, sandbox: Sandbox) -> AgentResult:
        _patiently(lambda: self._store.model_called(self._job.session_id, self._job.attempt))
        with self._costs.of("agent"), _alarm(self._settings.agent_timeout_s + AGENT_GRACE_S):
            outcome = self._run_agent(sandbox)
        return _with_diff(outcome, sandbox) if outcome.submitted and not outcome.submission.strip() else outcome

    def _begin_grading(self) -> None:
        _patiently(lambda: self._store.begin_grading(self._job.session_id, self._job.attempt))

    def _grade(self, submission: str, sandbox: Sandbox, begun: repository.Begun | None) -> Grade:
        settings = self._settings
        rules = Rules(settings.grading_timeout_s, settings.protected_paths, settings.reward_command)
        log_file = settings.log_dir / f"{self._job.session_id}.tests.log"
        with self._costs.of("grading"):
            return grade(self._dataset, self._job.task, submission, sandbox, rules, begun=begun, log_file=log_file)

    def _run_agent(self, sandbox: Sandbox) -> AgentResult:
        settings, job = self._settings, self._job
        try:
            return self._agent.run(
                job.task.problem_statement,
                sandbox,
                ModelEndpoint(job.base_url, job.api_key, settings.model_timeout_s),
                agent_timeout_s=settings.agent_timeout_s,
                command_timeout_s=settings.command_timeout_s,
                trajectory=settings.trajectory_dir / f"{job.session_id}.json",
                seconds=self._costs.seconds,
            )
        except AgentOutOfTime:
            raise AgentError(
                f"the agent did not end within {AGENT_GRACE_S:g} s after its limit of {settings.agent_timeout_s:g} s; "
                "a command or model call outlasted it: lower AGENT_SERVER_COMMAND_TIMEOUT_S or AGENT_SERVER_MODEL_TIMEOUT_S"
            ) from None

    @contextmanager
    def _sandbox(self, used_for: str) -> Iterator[Sandbox]:
        """A fresh sandbox of the task's image. When it has ended, what ran in it is on the bill as `used_for`."""
        scratch = _scratch(self._job, self._settings)
        _make_directory(scratch)
        with self._gate("sandbox_starts"), self._costs.of("sandbox_start"):
            sandbox = apptainer.start(
                apptainer.image_path(self._settings.sif_dir, self._job.task.image_name),
                scratch=scratch, env=dict(getattr(self._agent, "sandbox_env", {})), start_timeout_s=self._settings.sandbox_start_timeout_s,
                limits=self._settings.sandbox_limits, network=self._settings.sandbox_network,
                binds=parse_binds(self._settings.binds),
            )  # fmt: skip
        try:
            self._set_up(sandbox)
            yield sandbox
        finally:
            used = sandbox.resource_usage()
            sandbox.close()
            reap_orphans()
            self._costs.cpu_seconds[used_for] = used.cpu_s
            self._costs.peak_memory_bytes = max(self._costs.peak_memory_bytes, used.peak_bytes)

    def _set_up(self, sandbox: Sandbox) -> None:
        if not self._settings.setup_command:
            return
        with self._costs.of("setup_command"):
            result = sandbox.run(
                self._settings.setup_command, cwd=REPOSITORY, timeout_s=self._settings.sandbox_start_timeout_s
            )
        if result.returncode != 0:
            raise SandboxStartFailed(
                f"AGENT_SERVER_SETUP_COMMAND ended with {result.returncode}{result.limit and f' ({result.limit})'}: {result.output[-500:]}"
            )

    def _gate(self, name: str) -> AbstractContextManager[None]:
        """Inside the gate of that limit; while we wait there, the session's time limit stands still."""
        store, me = self._store, (self._job.session_id, self._job.attempt)
        semaphore = FileSemaphore(self._settings.semaphore_dir, name, slots=lambda: store.limits()[name])
        return semaphore.acquire(
            on_wait=lambda: _patiently(lambda: store.begin_wait(*me, name)),
            on_acquire=lambda: _patiently(lambda: store.end_wait(*me)),
        )


def _with_diff(outcome: AgentResult, sandbox: Sandbox) -> AgentResult:
    """What the agent left in its repository is its submission. What it left running may still exceed a limit."""
    try:
        return AgentResult(outcome.exit_status, True, repository.collect_diff(sandbox), outcome.n_calls)
    except SandboxLimitExceeded as exceeded:
        return AgentResult.over_limit(exceeded, outcome.n_calls)


def _reward(verdict: Grade, outcome: AgentResult, settings: Settings) -> float:
    """By the server's mode, or as its reward command printed it, plus the penalty of the agent's exit status."""
    earned = verdict.given_reward
    if earned is None:
        earned = reward.MODES[settings.reward](verdict.fail_to_pass, verdict.pass_to_pass, verdict.resolved)
    return reward.penalised(earned, outcome.exit_status, reward.parse_penalties(settings.penalties))


def _scratch(job: Job, settings: Settings) -> Path:
    return settings.scratch_dir / f"{job.session_id}.{job.attempt}"


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        kind = DiskFull if refused.errno == errno.ENOSPC else StorageError
        raise kind(f"cannot make {path}: {refused}; free space under the work directory") from refused


@contextmanager
def _alarm(after_s: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _patiently(write: Callable[[], None]) -> None:
    """Write to the store; a disk that is full now may be freed soon, and a session must not be lost to it. Raises Fenced."""
    deadline = time.monotonic() + STORE_RETRY_S
    while True:
        try:
            return write()
        except StorageError as refused:
            log.error("a record waits: %s", refused)
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
