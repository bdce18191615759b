"""The steps of one session, from its first sandbox to the grade."""

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

from agent_server.agents.base import AgentResult, AgentTimeout, ModelEndpoint, sandbox_env
from agent_server.agents.registry import load_agent
from agent_server.agents.sandbox_with_variables import SandboxWithVariables
from agent_server.config import AGENT_GRACE_S, Settings
from agent_server.grading import canary
from agent_server.grading.datasets.registry import load_dataset
from agent_server.grading.grade import Grade, GradingConfig, grade
from agent_server.grading.placement import select_strategy
from agent_server.layers.prepared import PreparedRepository, can_prepare, prepared_repository
from agent_server.private_files import make_private
from agent_server.sandboxes.base import Sandbox
from agent_server.sandboxes.processes import reap_orphans
from agent_server.scheduling.file_semaphore import FileSemaphore
from agent_server.store.store import Store
from agent_server.worker import submission, trajectory
from agent_server.worker.costs import SessionCosts
from agent_server.worker.job import Job
from agent_server.worker.signals import agent_deadline
from agent_server.worker.store_retry import retry_on_full_disk
from agent_server.worker.submission import Submission
from agent_server.worker.task_sandbox import run_setup_command, start_task_sandbox
from client.errors import DiskFull, SandboxStartFailed, StorageError
from client.proxies import exempt
from client.redaction import Redaction

log = logging.getLogger(__name__)
WORKER_MEMORY = "worker_memory"  # the limit, in a grade, of the memory that reading the tests' output may take


class SessionRunner:
    """Runs one attempt at a session: agent, then grading. The store has each state before it begins."""

    def __init__(self, job: Job, settings: Settings, store: Store, costs: SessionCosts):
        self._job, self._settings, self._store, self._costs = job, settings, store, costs
        self._agent = load_agent(settings)
        self._dataset = load_dataset(job.task.dataset)
        self._strategy = select_strategy(settings.grading_sandbox)
        self._trajectory = settings.trajectory_dir / f"{job.session_id}{trajectory.SUFFIX}"

    def run(self) -> tuple[Submission, Grade]:
        """What the agent left, and its grade. Raises Fenced, StackError, and CancelSignal on SIGTERM."""
        with self._agent_sandbox() as sandbox:
            left = submission.collect(self._run_agent(sandbox), sandbox)
            trajectory.record_ending(self._trajectory, left.result, Redaction(self._job.api_key))
            if self._strategy.in_agent_sandbox:
                return left, self._grade(left, lambda: nullcontext(sandbox))
        return left, self._grade(left, lambda: self._sandbox("tests"))

    @contextmanager
    def _agent_sandbox(self) -> Iterator[Sandbox]:
        """A sandbox with the agent's repository: prepared for all sessions of the row, or else for this one."""
        with ExitStack() as held:
            with self._costs.measure("prepare"):
                prepared = self._open_prepared(held) if can_prepare(self._settings, self._job.task) else None
            sandbox = held.enter_context(self._sandbox("commands", prepared.layer if prepared else None))
            if prepared:
                self._strategy.use_prepared(prepared.state)
            else:
                with self._costs.measure("prepare"):
                    self._strategy.prepare(self._dataset, self._job.task, sandbox)
            yield sandbox

    def _open_prepared(self, held: ExitStack) -> PreparedRepository | None:
        """The row's prepared repository, until `held` ends; None where this machine cannot make it."""
        what = (self._dataset, self._job.task, self._strategy)
        try:
            return held.enter_context(prepared_repository(self._settings, *what, self._sandbox_that_makes))
        except SandboxStartFailed as refused:
            # The work directory may be on a file system that holds no overlay's files: a container's, for example.
            log.warning("the repository of %s is prepared for one session alone: %s", self._job.task.task_id, refused)
            return None

    @contextmanager
    def _sandbox_that_makes(self, layer: Path) -> Iterator[Sandbox]:
        with self._slot("sandbox_starts"):
            sandbox = start_task_sandbox(self._settings, self._job.task, self._scratch(), make_layer=layer)
        try:
            yield sandbox
        finally:
            sandbox.close()
            reap_orphans()

    def _run_agent(self, sandbox: Sandbox) -> AgentResult:
        retry_on_full_disk(lambda: self._store.record_model_call(self._job.session_id, self._job.attempt))
        of_agent = SandboxWithVariables(sandbox, sandbox_env(self._agent))
        try:
            with self._costs.measure("agent"), agent_deadline(self._settings.agent_timeout_s + AGENT_GRACE_S):
                return self._call_agent(of_agent)
        except AgentTimeout:
            return AgentResult.timed_out(None)
        except MemoryError:
            log.exception("session %s: its agent has no memory", self._job.session_id)
            return AgentResult.out_of_memory(None)
        finally:
            self._protect_trajectory()

    def _call_agent(self, sandbox: Sandbox) -> AgentResult:
        settings, job = self._settings, self._job
        os.environ.update(exempt(job.base_url, os.environ))
        return self._agent.run(
            job.task.problem_statement,
            sandbox,
            ModelEndpoint(job.base_url, job.api_key, settings.model_timeout_s),
            agent_timeout_s=settings.agent_timeout_s,
            command_timeout_s=settings.command_timeout_s,
            trajectory=self._trajectory,
            seconds=self._costs.seconds,
        )

    def _protect_trajectory(self) -> None:
        """Close the agent's files to other users, without the key. A disk error must not cost the session its result,
        but then the file is dropped."""
        redaction = Redaction(self._job.api_key)
        files = filter(Path.is_file, self._settings.trajectory_dir.glob(f"{self._job.session_id}*"))
        for path in list(files):
            try:
                make_private(path, redaction)
            except OSError as error:
                log.error("the trajectory %s was dropped: %s", path, error)
                path.unlink(missing_ok=True)

    def _grade(self, left: Submission, open_sandbox: Callable[[], AbstractContextManager[Sandbox]]) -> Grade:
        if ungraded := left.ungraded():
            return ungraded
        try:
            return self._run_tests(left, open_sandbox)
        except MemoryError:  # the submission decides what the tests print and report
            log.exception("session %s: its grading has no memory", self._job.session_id)
            rule = f"AGENT_SERVER_WORKER_MEMORY_MIB={self._settings.worker_memory_mib}"
            return Grade(resolved=False, status="graded", limit=WORKER_MEMORY, log=f"the tests left more than {rule}")

    def _run_tests(self, left: Submission, open_sandbox: Callable[[], AbstractContextManager[Sandbox]]) -> Grade:
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
    def _sandbox(self, phase: str, layer: Path | None = None) -> Iterator[Sandbox]:
        """A fresh sandbox of the task's image, on `layer`. Its CPU time is added to `phase` when it ends."""
        settings = self._settings
        with self._slot("sandbox_starts"), self._costs.measure("sandbox_start"):
            sandbox = start_task_sandbox(settings, self._job.task, self._scratch(), layer=layer)
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

    def _scratch(self) -> Path:
        folder = self._settings.scratch_dir / self._job.attempt_id
        _make_directory(folder)
        return folder

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
