"""The steps of one session, from its first sandbox to the grade."""

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from agent_server.agents.base import AgentResult, AgentTimeout, ModelEndpoint, sandbox_env
from agent_server.agents.registry import load_agent
from agent_server.agents.sandbox_with_variables import SandboxWithVariables
from agent_server.config import Settings
from agent_server.grading import canary
from agent_server.grading.datasets.registry import load_dataset
from agent_server.grading.grade import Grade, GradingConfig, grade
from agent_server.grading.placement import select_strategy
from agent_server.sandboxes.base import Sandbox
from agent_server.sandboxes.processes import reap_orphans
from agent_server.scheduling.file_semaphore import FileSemaphore
from agent_server.store.store import Store
from agent_server.worker import submission
from agent_server.worker.costs import SessionCosts
from agent_server.worker.job import Job
from agent_server.worker.signals import agent_deadline
from agent_server.worker.store_retry import retry_on_full_disk
from agent_server.worker.submission import Submission
from agent_server.worker.task_sandbox import run_setup_command, start_task_sandbox
from client.errors import DiskFull, StorageError

log = logging.getLogger(__name__)
AGENT_GRACE_S = 5.0  # beyond its own limit, for a last command that submits


class SessionRunner:
    """Runs one attempt at a session: agent, then grading. The store has each state before it begins."""

    def __init__(self, job: Job, settings: Settings, store: Store, costs: SessionCosts):
        self._job, self._settings, self._store, self._costs = job, settings, store, costs
        self._agent = load_agent(settings)
        self._dataset = load_dataset(job.task.dataset)
        self._strategy = select_strategy(settings.grading_sandbox)

    def run(self) -> tuple[Submission, Grade]:
        """What the agent left, and its grade. Raises Fenced, StackError, and CancelSignal on SIGTERM."""
        with self._sandbox("commands") as sandbox:
            with self._costs.measure("prepare"):
                self._strategy.prepare(self._dataset, self._job.task, sandbox)
            left = submission.collect(self._run_agent(sandbox), sandbox)
            if self._strategy.in_agent_sandbox:
                return left, self._grade(left, lambda: nullcontext(sandbox))
        return left, self._grade(left, lambda: self._sandbox("tests"))

    def _run_agent(self, sandbox: Sandbox) -> AgentResult:
        retry_on_full_disk(lambda: self._store.record_model_call(self._job.session_id, self._job.attempt))
        of_agent = SandboxWithVariables(sandbox, sandbox_env(self._agent))
        try:
            with self._costs.measure("agent"), agent_deadline(self._settings.agent_timeout_s + AGENT_GRACE_S):
                return self._call_agent(of_agent)
        except AgentTimeout:
            return AgentResult.timed_out(None)

    def _call_agent(self, sandbox: Sandbox) -> AgentResult:
        settings, job = self._settings, self._job
        return self._agent.run(
            job.task.problem_statement,
            sandbox,
            ModelEndpoint(job.base_url, job.api_key, settings.model_timeout_s),
            agent_timeout_s=settings.agent_timeout_s,
            command_timeout_s=settings.command_timeout_s,
            trajectory=settings.trajectory_dir / f"{job.session_id}.json",
            seconds=self._costs.seconds,
        )

    def _grade(self, left: Submission, open_sandbox: Callable[[], AbstractContextManager[Sandbox]]) -> Grade:
        if ungraded := left.ungraded():
            return ungraded
        settings = self._settings
        retry_on_full_disk(lambda: self._store.begin_grading(self._job.session_id, self._job.attempt))
        config = GradingConfig(
            timeout_s=settings.grading_timeout_s,
            protected_paths=settings.protected_paths,
            reward_command=settings.reward_command,
            canary=canary.is_drawn(settings.canary, self._job.mode, self._job.session_id),
            partial_rewards=settings.reward != "binary",
        )
        what = (self._dataset, self._job.task, left.result.submission)
        log_file = settings.log_dir / f"{self._job.session_id}.tests.log"
        with self._slot("gradings"):
            with open_sandbox() as sandbox, self._costs.measure("grading"):
                found = grade(*what, sandbox, self._strategy, config, log_file=log_file)
            if canary.is_due(found, config):
                with open_sandbox() as sandbox, self._costs.measure("canary"):
                    found = canary.confirm(*what, sandbox, self._strategy, config, found, log_file=log_file)
        if found.status == canary.FORGED:
            log.warning("session %s: forged outcomes: %s", self._job.session_id, found.log.partition("\n")[0])
        return found

    @contextmanager
    def _sandbox(self, phase: str) -> Iterator[Sandbox]:
        """A fresh sandbox of the task's image. Its CPU time is added to `phase` when it ends."""
        settings = self._settings
        scratch = settings.scratch_dir / self._job.attempt_id
        _make_directory(scratch)
        with self._slot("sandbox_starts"), self._costs.measure("sandbox_start"):
            sandbox = start_task_sandbox(settings, self._job.task, scratch)
        try:
            if settings.setup_command:
                with self._costs.measure("setup_command"):
                    run_setup_command(settings, sandbox)
            yield sandbox
        finally:
            used = sandbox.resource_usage()
            sandbox.close()
            reap_orphans()
            self._costs.add_sandbox(phase, used)

    def _slot(self, name: str) -> AbstractContextManager[None]:
        """Hold a slot of the limit `name`. Time spent in its queue does not count as the session's."""
        store, attempt = self._store, (self._job.session_id, self._job.attempt)
        semaphore = FileSemaphore(self._settings.semaphore_dir, name, slots=lambda: store.limits()[name])
        return semaphore.acquire(
            on_wait=lambda: retry_on_full_disk(lambda: store.begin_wait(*attempt, name)),
            on_acquire=lambda: retry_on_full_disk(lambda: store.end_wait(*attempt)),
        )


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        kind = DiskFull if refused.errno == errno.ENOSPC else StorageError
        raise kind(f"cannot make {path}: {refused}; free space under the work directory") from refused
