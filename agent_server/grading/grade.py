"""Grades a submission: base restored, patch applied, protected files restored, tests run, outcomes compared.

Invariant: grading sees only the submission. Tests that could not be run raise; they do not score.
"""

import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent_server.grading import patches, protected_snapshots, repository
from agent_server.grading.attribution import SubmissionFailed, attribute_to_submission
from agent_server.grading.datasets.base import Dataset, TestRun
from agent_server.grading.outcomes import expected_outcomes
from agent_server.grading.placement import GradingSandboxStrategy
from agent_server.grading.run_tests import LOG_TAIL_CHARACTERS, run_tests
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task
from client.errors import GraderError


@dataclass(frozen=True, slots=True)
class Grade:
    """The result of grading, as it goes into the session's record.

    `status`: graded, no_submission, not_a_patch, patch_failed, or rejected (by the policy on protected paths).
    `applied_by`: the key of patches.APPLY_COMMANDS that applied the patch. `tests`: outcome by test id of the expected
    tests, MISSING where the runner reported none. `patch`: statistics. `touched`: protected paths that the submission
    changed. `given_reward`: the reward that a reward command printed; None without such a command. `limit`: what ended
    the tests early, as in CommandResult. `log`: the end of what the tests printed, or why they were not run.
    `log_path`: the file with all of it. `policy`: how protected paths were treated. `seconds`: wall time of grading.
    """

    resolved: bool
    status: str
    applied_by: str = ""
    tests: dict[str, str] = field(default_factory=dict)
    fail_to_pass: dict[str, str] = field(default_factory=dict)
    pass_to_pass: dict[str, str] = field(default_factory=dict)
    patch: dict[str, int] = field(default_factory=dict)
    touched: tuple[str, ...] = ()
    policy: str = ""
    given_reward: float | None = None
    limit: str = ""
    log: str = ""
    log_path: str = ""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The fields of the session's record. `tests` holds what the other two dicts do."""
        return {name: value for name, value in asdict(self).items() if name not in ("fail_to_pass", "pass_to_pass")}


NO_SUBMISSION = Grade(resolved=False, status="no_submission")


@dataclass(frozen=True, slots=True)
class GradingConfig:
    """How a server grades. `protected_paths`: the policy for them. `reward_command`, if any, runs instead of the row's
    tests and prints the reward as its last line."""

    timeout_s: float
    protected_paths: protected_snapshots.Policy = "strip"
    reward_command: str = ""


@dataclass(slots=True)
class _Application:
    """Fields of the Grade about applying the submission; filled step by step, so that a failure keeps those so far."""

    patch: dict[str, int]
    policy: protected_snapshots.Policy
    applied_by: str = ""
    touched: tuple[str, ...] = ()


def grade(
    dataset: Dataset,
    task: Task,
    submission: str,
    sandbox: Sandbox,
    strategy: GradingSandboxStrategy,
    config: GradingConfig,
    *,
    log_file: Path | None = None,
) -> Grade:
    """Run the row's tests in `sandbox` with `submission` applied: a unified diff, or "" for the repository as it is.

    Tests that exceed a limit of the sandbox have failed. Everything they print goes to `log_file`. Raises GraderTimeout
    when the tests outlast the configured time, GraderError when row and image do not fit, SandboxDied when the sandbox
    ends of itself.
    """
    started = time.monotonic()
    submission = submission.encode(errors="replace").decode()  # a lone surrogate cannot be written to a file
    application = _Application(patches.statistics(submission).as_dict(), config.protected_paths)
    try:
        if submission and not patches.is_patch(submission):
            raise SubmissionFailed("not_a_patch", submission[:LOG_TAIL_CHARACTERS])
        before = strategy.restore_base(dataset, task, sandbox)
        if submission:
            _apply(dataset, task, submission, sandbox, before, application)
    except SubmissionFailed as failed:
        seconds = time.monotonic() - started
        return Grade(False, failed.status, **asdict(application), log=failed.log, seconds=seconds)
    repository.restore_hidden(dataset, task, sandbox)
    script = config.reward_command or dataset.test_script(task)
    run = run_tests(dataset, task, sandbox, script, config.timeout_s, log_file)
    outcomes: dict[str, str] = {}  # stays empty where a limit ended the tests: then none of them has passed
    given_reward = None
    if config.reward_command:
        given_reward = 0.0 if run.limit else _printed_reward(task, run)
        resolved = given_reward >= 1.0
    else:
        if not run.limit:
            outcomes = dataset.outcomes(task, run)
        resolved = not run.limit and dataset.resolved(task, outcomes)
    fail_to_pass = expected_outcomes(task.fail_to_pass, outcomes)
    pass_to_pass = expected_outcomes(task.pass_to_pass, outcomes)
    return Grade(
        resolved=resolved,
        status="graded",
        tests=fail_to_pass | pass_to_pass,
        fail_to_pass=fail_to_pass,
        pass_to_pass=pass_to_pass,
        **asdict(application),
        given_reward=given_reward,
        limit=run.limit,
        log=run.log[-LOG_TAIL_CHARACTERS:],
        log_path=str(log_file) if log_file else "",
        seconds=time.monotonic() - started,
    )


def _apply(
    dataset: Dataset,
    task: Task,
    submission: str,
    sandbox: Sandbox,
    before: protected_snapshots.Snapshot,
    application: _Application,
) -> None:
    """Apply the submission and undo what it may not change. Raises SubmissionFailed."""
    with attribute_to_submission(sandbox, "its files cannot be written or listed in the sandbox"):
        application.applied_by, reason = patches.apply(submission, sandbox)
        if not application.applied_by:
            raise SubmissionFailed("patch_failed", reason)
        if packages := protected_snapshots.changed_packages(task, sandbox):
            raise SubmissionFailed("patch_failed", f"the patch changes installed packages: {packages}")
        changed = before.changed(protected_snapshots.snapshot(dataset, task, sandbox))
        application.touched = protected_snapshots.reportable(changed)
        if application.touched and application.policy == "reject":
            raise SubmissionFailed("rejected")
        strip = application.policy == "strip"
        to_restore = changed if strip else protected_snapshots.always_restored(dataset, task, changed)
        if to_restore:
            protected_snapshots.restore(task, sandbox, before, to_restore)


def _printed_reward(task: Task, run: TestRun) -> float:
    last_line = next((line for line in reversed(run.log.splitlines()) if line.strip()), "")
    try:
        reward = float(last_line)
    except ValueError:
        reward = math.nan
    if run.returncode != 0 or not 0.0 <= reward <= 1.0:
        raise GraderError(
            f"row {task.task_id}: AGENT_SERVER_REWARD_COMMAND must end with 0 and print a number from 0 to 1 as its"
            f" last line; it ended with {run.returncode} and printed {last_line!r:.200}"
        )
    return reward
