"""Grades a submission: base restored, patch applied, protected files restored, tests run, outcomes compared.

Invariant: grading sees only the submission. Tests that could not be run raise; they do not score.
"""

import math
import re
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from agent_server.grading import patches, protected_snapshots
from agent_server.grading.application import Application, as_utf8, prepare, restore_planted
from agent_server.grading.attribution import SubmissionFailed
from agent_server.grading.datasets.base import Dataset, TestRun
from agent_server.grading.outcomes import expected_outcomes, select_named
from agent_server.grading.placement import GradingSandboxStrategy
from agent_server.grading.reporter.report import DOCTEST
from agent_server.grading.run_tests import LOG_TAIL_CHARACTERS, run_tests
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task
from client.errors import GraderError


@dataclass(frozen=True, slots=True)
class Grade:
    """The result of grading, as it goes into the session's record.

    `status`: graded, no_submission, not_a_patch, submission_too_large, patch_failed, rejected (by the policy on
    protected paths), or forged (by the canary run).
    `applied_by`: the key of patches.APPLY_COMMANDS that applied the patch. `tests`: outcome by test id of the expected
    tests, MISSING where the runner reported none. `patch`: statistics. `touched`: protected paths that the submission
    changed. `given_reward`: the reward that a reward command printed; None without such a command. `limit`: what ended
    the tests early, as in CommandResult. `log`: the end of what the tests printed, or why they were not run.
    `log_path`: the file with all of it. `policy`: how protected paths were treated. `seconds`: wall time of grading,
    without that of a canary run. `canary`: result of the canary run, "" without one; `canary_seconds`: its wall time.
    `fault`: why the report of the test runners is not whole, "" where it is. `canary_keys`: the passed tests that a
    canary run repeats. `planted`: files of tests that the submission changed, and that were restored.
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
    canary: str = ""
    canary_seconds: float = 0.0
    fault: str = ""
    canary_keys: frozenset[str] = frozenset()
    planted: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The fields of the session's record. `tests` holds what the other two dicts do."""
        left_out = ("fail_to_pass", "pass_to_pass", "canary_keys", "planted")
        return {name: value for name, value in asdict(self).items() if name not in left_out}


NO_SUBMISSION = Grade(resolved=False, status="no_submission")


@dataclass(frozen=True, slots=True)
class GradingConfig:
    """How a server grades. `protected_paths`: the policy for them. `reward_command`, if any, runs instead of the row's
    tests and prints the reward as its last line. `canary`: whether a session that would be rewarded gets a canary run.
    `partial_rewards`: whether unresolved sessions may be rewarded too."""

    timeout_s: float
    protected_paths: protected_snapshots.Policy = "strip"
    reward_command: str = ""
    canary: bool = False
    partial_rewards: bool = False


TEST_MODULE = re.compile(r"(?:^|/)(?:test_[^/]*|[^/]*_test)\.py$")
MAX_RUNS = 3  # of the tests; each after the first restores test files that the one before has found changed


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
    submission = as_utf8(submission)
    application = Application(patches.statistics(submission).as_dict(), config.protected_paths)
    try:
        changed = prepare(dataset, task, submission, sandbox, strategy, application)
        script = config.reward_command or dataset.test_script(task)
        if config.reward_command:
            run = run_tests(task, sandbox, script, config.timeout_s, log_file)
        else:
            run = _run_row_tests(dataset, task, sandbox, script, changed, application, config.timeout_s, log_file)
    except SubmissionFailed as failed:
        seconds = time.monotonic() - started
        return Grade(False, failed.status, **asdict(application), log=failed.log, seconds=seconds)
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
        fault=run.report.fault,
        canary_keys=frozenset() if config.reward_command else _canary_keys(dataset, task, run),
    )


def _run_row_tests(
    dataset: Dataset,
    task: Task,
    sandbox: Sandbox,
    script: str,
    changed: set[str],
    application: Application,
    timeout_s: float,
    log_file: Path | None,
) -> TestRun:
    """Run the row's tests on the row's own test files: where the runner took tests from files that the submission
    changed, these are restored, and the tests run again. Raises SubmissionFailed."""
    ends_at = time.monotonic() + timeout_s
    for _ in range(MAX_RUNS):
        run = run_tests(task, sandbox, script, max(ends_at - time.monotonic(), 1.0), log_file)
        planted = _planted(dataset, task, run, application.policy) & changed
        if not planted:
            return replace(run, report=run.report.without_forged(changed))
        application.planted = (*application.planted, *sorted(planted))
        application.touched = tuple(sorted({*application.touched, *(f"./{path}" for path in planted)}))
        if application.policy == "reject":
            raise SubmissionFailed("rejected")
        restore_planted(task, sandbox, planted)
        changed -= planted
    raise SubmissionFailed("rejected", f"after {MAX_RUNS} runs the tests still come from files that the patch changes")


def _planted(dataset: Dataset, task: Task, run: TestRun, policy: protected_snapshots.Policy) -> set[str]:
    """Files of tests that the policy protects: of all tests, or under `allow` of those that the row expects."""
    tests = run.report.tests
    if policy == "allow":
        names = dataset.test_names(task, tests)
        tests = tuple(tests[position] for position in select_named(names, (*task.fail_to_pass, *task.pass_to_pass)))
    files = {test.file for test in tests if test.kind != DOCTEST and test.file}
    if not run.report.is_whole and policy != "allow":  # a module that ends the process reports no test
        files |= {module for module in run.report.modules if TEST_MODULE.search(module)}
    return files


def _canary_keys(dataset: Dataset, task: Task, run: TestRun) -> frozenset[str]:
    passed = tuple(test for test in run.report.tests if test.outcome == "PASSED")
    return frozenset(test.key for test in dataset.canary_tests(task, passed))


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
