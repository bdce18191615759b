"""Certifies one row: grades its gold patch, no patch, and every hostile submission, each in a fresh sandbox.

Invariant: a row that cannot be certified yields a verdict with the error. It never ends the run.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_server.agents.base import Agent
from agent_server.config import Settings
from agent_server.grading import repository
from agent_server.grading.datasets.base import REPOSITORY, Dataset
from agent_server.grading.grade import GradingConfig, grade
from agent_server.grading.outcomes import failing
from agent_server.grading.placement import FreshSandbox
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task
from agent_server.validate import hostile
from agent_server.validate.verdicts import EMPTY, GOLD, Verdict
from agent_server.worker.task_sandbox import run_setup_command, start_task_sandbox
from client.errors import SandboxLimitExceeded, StackError

RESET_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of the sandboxes and of the grading. `timeout_s`: of one run of the tests."""

    settings: Settings
    agent: Agent
    timeout_s: float


def certify(
    row: dict[str, Any], dataset: Dataset, task: Task, repeat: int, conditions: Conditions
) -> Iterator[Verdict]:
    """The verdicts of one repeat of the row's cases, gold first."""
    try:
        with _sandbox(task, conditions) as sandbox:
            repository.prepare(dataset, task, sandbox)
            dataset.apply_gold(row, task, sandbox)
            gold = repository.collect_diff(sandbox)
            sandbox.run("git reset -q --hard && git clean -fdq", cwd=REPOSITORY, timeout_s=RESET_TIMEOUT_S)
            attacks = list(hostile.submissions(dataset, task, sandbox, gold))
    except Exception as failure:  # a dataset class of the user's may raise anything
        yield Verdict(task.task_id, GOLD, repeat, True, None, "", 0.0, error=_describe(failure))
        return
    yield _verdict(dataset, task, repeat, conditions, GOLD, gold, expected=True)
    for case, patch in [(EMPTY, ""), *attacks]:
        yield _verdict(dataset, task, repeat, conditions, case, patch, expected=False)


def _verdict(
    dataset: Dataset, task: Task, repeat: int, conditions: Conditions, case: str, patch: str, *, expected: bool
) -> Verdict:
    started = time.monotonic()
    try:
        with _sandbox(task, conditions) as sandbox:
            found = grade(dataset, task, patch, sandbox, FreshSandbox(), GradingConfig(conditions.timeout_s))
    except Exception as failure:  # as above
        seconds = time.monotonic() - started
        return Verdict(task.task_id, case, repeat, expected, None, "", seconds, error=_describe(failure))
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
    )


@contextmanager
def _sandbox(task: Task, conditions: Conditions) -> Iterator[Sandbox]:
    settings = conditions.settings
    with tempfile.TemporaryDirectory(prefix="validate-") as scratch:
        sandbox = start_task_sandbox(settings, conditions.agent, task, Path(scratch))
        try:
            if settings.setup_command:
                run_setup_command(settings, sandbox)
            yield sandbox
        finally:
            sandbox.close()


def _describe(failure: Exception) -> str:
    if isinstance(failure, SandboxLimitExceeded):
        return f"limit: {failure.limit}"
    code = failure.code if isinstance(failure, StackError) else type(failure).__name__
    return f"{code}: {failure}"[:1000]
