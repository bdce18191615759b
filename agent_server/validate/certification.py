"""Certifies one row: grades its gold patch, no patch, and every hostile submission, each in a fresh sandbox.

Invariant: a row that cannot be certified yields a verdict with the error. It never ends the run. Every attack yields a
verdict, also one that cannot be made for the row.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_server.config import Settings
from agent_server.grading import canary, repository
from agent_server.grading.datasets.base import REPOSITORY, Dataset, run_checked
from agent_server.grading.grade import GradingConfig, grade
from agent_server.grading.outcomes import failing
from agent_server.grading.placement import FreshSandbox
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task
from agent_server.validate import hostile
from agent_server.validate.limits import setting_of_limit
from agent_server.validate.verdicts import EMPTY, GOLD, Verdict
from agent_server.worker.task_sandbox import run_setup_command, start_task_sandbox
from client.errors import GraderTimeout, SandboxLimitExceeded, StackError


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of the sandboxes and of the grading. `attacks`: names of the hostile submissions."""

    settings: Settings
    attacks: Sequence[str] = hostile.NAMES


def certify(
    row: dict[str, Any], dataset: Dataset, task: Task, repeat: int, conditions: Conditions
) -> Iterator[Verdict]:
    """The verdicts of one repeat of the row's cases, gold first."""
    try:
        with _sandbox(task, conditions) as sandbox:
            repository.prepare(dataset, task, sandbox)
            dataset.apply_gold(row, task, sandbox)
            gold = repository.collect_diff(sandbox)
            gold_files = hostile.find_gold_files(task, sandbox)
            run_checked(sandbox, task, hostile.RESET, cwd=REPOSITORY)
            attacks = list(hostile.submissions(dataset, task, sandbox, gold_files, conditions.attacks))
    except Exception as failure:  # a dataset class of the user's may raise anything
        yield _without_grade(task, GOLD, repeat, conditions, failure, 0.0, expected=True)
        return
    yield _verdict(dataset, task, repeat, conditions, GOLD, gold, expected=True)
    yield _verdict(dataset, task, repeat, conditions, EMPTY, "", expected=False)
    for made in attacks:
        if made.not_applicable:
            yield Verdict(task.task_id, made.attack, repeat, False, None, "", 0.0, not_applicable=made.not_applicable)
        else:
            yield _verdict(dataset, task, repeat, conditions, made.attack, made.patch, expected=False)


def _verdict(
    dataset: Dataset, task: Task, repeat: int, conditions: Conditions, case: str, patch: str, *, expected: bool
) -> Verdict:
    started = time.monotonic()
    settings, submission = conditions.settings, (dataset, task, patch)
    # Attacks always meet the canary run; gold does where the server makes one.
    with_canary = case != GOLD or settings.canary != "off"
    config = GradingConfig(settings.grading_timeout_s, settings.protected_paths, canary=with_canary)
    try:
        with _sandbox(task, conditions) as sandbox:
            found = grade(*submission, sandbox, FreshSandbox(), config)
        if canary.is_due(found, config):
            with _sandbox(task, conditions) as sandbox:
                found = canary.confirm(*submission, sandbox, FreshSandbox(), config, found)
    except Exception as failure:  # as above
        seconds = time.monotonic() - started
        return _without_grade(task, case, repeat, conditions, failure, seconds, expected=expected)
    as_expected = found.resolved is expected
    return Verdict(
        task_id=task.task_id,
        case=case,
        repeat=repeat,
        expected=expected,
        resolved=found.resolved,
        status=found.status,
        seconds=time.monotonic() - started,
        touched=found.touched,
        log="" if as_expected else found.log,
        failing=() if as_expected else failing(found.fail_to_pass, found.pass_to_pass),
        limit=found.limit,
        setting=setting_of_limit(found.limit, settings),
    )


def _without_grade(
    task: Task, case: str, repeat: int, conditions: Conditions, failure: Exception, seconds: float, *, expected: bool
) -> Verdict:
    limit = failure.limit if isinstance(failure, SandboxLimitExceeded) else ""
    if isinstance(failure, GraderTimeout):
        limit = "time"
    code = failure.code if isinstance(failure, StackError) else type(failure).__name__
    error = f"limit: {limit}" if limit else f"{code}: {failure}"[:1000]
    setting = setting_of_limit(limit, conditions.settings)
    return Verdict(task.task_id, case, repeat, expected, None, "", seconds, error=error, limit=limit, setting=setting)


@contextmanager
def _sandbox(task: Task, conditions: Conditions) -> Iterator[Sandbox]:
    settings = conditions.settings
    with tempfile.TemporaryDirectory(prefix="validate-") as scratch:
        sandbox = start_task_sandbox(settings, task, Path(scratch))
        try:
            if settings.setup_command:
                run_setup_command(settings, sandbox)
            yield sandbox
        finally:
            sandbox.close()
