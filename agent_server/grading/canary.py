"""The canary run: whether tests that have passed can fail at all.

Forged outcomes look like honest ones. So the FAIL_TO_PASS tests of a session that would be rewarded run once more, in a
sandbox that the first run has not touched, in a mode of the reporter in which a test that has passed fails afterwards.
Code that patches the runner, ends the process or prints a summary reports passes again, or nothing.
Invariant: a session whose canary run did not fail every repeated test gets no reward.
"""

import hashlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

from agent_server.grading.application import Application, prepare
from agent_server.grading.attribution import SubmissionFailed
from agent_server.grading.datasets.base import Dataset
from agent_server.grading.grade import Grade, GradingConfig
from agent_server.grading.placement import GradingSandboxStrategy
from agent_server.grading.reporter.report import RunReport
from agent_server.grading.run_tests import LOG_TAIL_CHARACTERS, run_tests
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.characters import whole_characters
from agent_server.tasks.task import Task
from client.errors import GraderError, GraderTimeout
from client.wire import Mode

FAILING = ("FAILED", "ERROR")
PASSED, FORGED = "passed", "forged"
SHARE_ONE_IN = 4  # AGENT_SERVER_CANARY=share: one in so many training sessions that would be rewarded has a canary run


def is_due(found: Grade, config: GradingConfig) -> bool:
    """Whether a grade needs a canary run: with partial rewards an unresolved session may be rewarded too."""
    return config.canary and bool(found.canary_keys) and (found.resolved or config.partial_rewards)


def is_drawn(setting: Literal["off", "share", "always"], mode: Mode, session_id: str) -> bool:
    """Whether a session belongs to those that AGENT_SERVER_CANARY selects. The same session is always drawn alike."""
    if setting != "share" or mode == "eval":
        return setting != "off"
    return int.from_bytes(hashlib.sha256(session_id.encode()).digest()[:4]) % SHARE_ONE_IN == 0


def confirm(
    dataset: Dataset,
    task: Task,
    submission: str,
    sandbox: Sandbox,
    strategy: GradingSandboxStrategy,
    config: GradingConfig,
    found: Grade,
    *,
    log_file: Path | None = None,
) -> Grade:
    """`found` with the result of a canary run in `sandbox`, which must be a fresh one, or the agent's own where that is
    graded in. A forged grade is unresolved and keeps its tests as evidence. Raises as `grade` does, and GraderError
    where the canary run exceeds a limit of the sandbox."""
    started = time.monotonic()
    keys = found.canary_keys
    canary_log = log_file.with_suffix(".canary.log") if log_file else None
    try:
        application = Application({}, config.protected_paths)
        prepare(dataset, task, whole_characters(submission), sandbox, strategy, application, found.planted)
    except SubmissionFailed as failed:
        raise GraderError(
            f"row {task.task_id}: the submission must apply in the canary run as it did before; it did not: {failed}"
        ) from failed
    timeout_s = config.timeout_s - found.seconds
    if timeout_s <= 0:
        raise GraderTimeout(
            f"row {task.task_id}: the tests left no time for the canary run; raise AGENT_SERVER_GRADING_TIMEOUT_S"
        )
    run = run_tests(task, sandbox, dataset.test_script(task), timeout_s, canary_log, keys)
    if run.limit:
        raise GraderError(
            f"row {task.task_id}: the canary run exceeded a limit of the sandbox ({run.limit}) that the tests did not"
            " exceed; raise the limit, or set AGENT_SERVER_CANARY=off"
        )
    unfailed = keys - failed_keys(run.report)
    seconds = time.monotonic() - started
    if not unfailed:
        return replace(found, canary=PASSED, canary_seconds=seconds)
    evidence = f"tests that must fail in the canary run did not: {', '.join(sorted(unfailed)[:5])}\n"
    return replace(
        found,
        resolved=False,
        status=FORGED,
        fail_to_pass={},
        pass_to_pass={},
        canary=FORGED,
        canary_seconds=seconds,
        log=(evidence + run.log)[-LOG_TAIL_CHARACTERS:],
    )


def failed_keys(report: RunReport) -> set[str]:
    """Keys of the tests that failed, whether or not the report is whole: a failure cannot be of use to forge a pass."""
    return {test.key for test in report.tests if test.outcome in FAILING}
