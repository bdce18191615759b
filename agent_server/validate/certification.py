"""Certifies one row: grades its gold patch, no patch, and every hostile submission, each in a fresh sandbox.

Invariant: a row that cannot be certified yields a verdict with the error. It never ends the run. Every attack yields a
verdict, also one that cannot be made for the row.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_server.config import Settings
from agent_server.grading import canary, changes, repository
from agent_server.grading.datasets.base import Dataset
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

HOSTILE = "hostile set"  # the case of a row for which no attack can be made
TIMED_OUT = "timed_out"  # status of an attack that lets the tests run until their time is over
UNKNOWN = "graded by printed text, and whether it can be forged is unknown"


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of the sandboxes and of the grading. `attacks`: names of the hostile submissions."""

    settings: Settings
    attacks: Sequence[str] = hostile.NAMES


def certify(
    row: dict[str, Any], dataset: Dataset, task: Task, repeat: int, conditions: Conditions
) -> Iterator[Verdict]:
    """The verdicts of one repeat of the row's cases, gold first."""
    cases = Cases(dataset, task, repeat, conditions)
    try:
        with _sandbox(task, conditions) as sandbox:
            repository.prepare(dataset, task, sandbox)
            dataset.apply_gold(row, task, sandbox)
            gold = changes.collect_diff(sandbox)
            gold_files = hostile.find_gold_files(task, sandbox)
    except Exception as failure:  # a dataset class of the user's may raise anything
        yield cases.without_grade(GOLD, failure, 0.0, expected=True)
        return
    with tempfile.TemporaryDirectory(prefix="validate-") as folder:
        log_file = Path(folder, "gold.log")
        yield cases.verdict(GOLD, gold, expected=True, log_file=log_file)
        gold_log = log_file.read_text(errors="replace") if log_file.exists() else ""
    yield cases.verdict(EMPTY, "", expected=False)
    try:
        with _sandbox(task, conditions) as sandbox:
            repository.prepare(dataset, task, sandbox)
            attacks = list(hostile.submissions(dataset, task, sandbox, gold_files, gold_log, conditions.attacks))
    except Exception as failure:  # as above
        yield cases.without_grade(HOSTILE, failure, 0.0, expected=False)
        return
    for made in attacks:
        yield cases.attack(made)


@dataclass(frozen=True, slots=True)
class Cases:
    """The cases of one repeat of a row."""

    dataset: Dataset
    task: Task
    repeat: int
    conditions: Conditions

    def verdict(self, name: str, patch: str, *, expected: bool, log_file: Path | None = None) -> Verdict:
        """The grade of a patch in fresh sandboxes."""
        started = time.monotonic()
        settings, submission = self.conditions.settings, (self.dataset, self.task, patch)
        # Attacks always meet the canary run; gold does where the server makes one.
        with_canary = name != GOLD or settings.canary != "off"
        config = GradingConfig(settings.grading_timeout_s, settings.protected_paths, canary=with_canary)
        try:
            with _sandbox(self.task, self.conditions) as sandbox:
                found = grade(*submission, sandbox, FreshSandbox(), config, log_file=log_file)
            if canary.is_due(found, config):
                with _sandbox(self.task, self.conditions) as sandbox:
                    found = canary.confirm(*submission, sandbox, FreshSandbox(), config, found)
        except Exception as failure:  # as above
            verdict = self.without_grade(name, failure, time.monotonic() - started, expected=expected)
            if isinstance(failure, GraderTimeout) and name not in (GOLD, EMPTY):
                return replace(verdict, resolved=False, status=TIMED_OUT, error="")  # an attack without a reward
            return verdict
        as_expected = found.resolved is expected
        return Verdict(
            task_id=self.task.task_id,
            case=name,
            repeat=self.repeat,
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

    def attack(self, made: hostile.HostileSubmission) -> Verdict:
        """The grade of a hostile submission, or why there is none to grade.

        Where the grade believes what is printed, a row is not shown to be safe by an attack that cannot print there.
        """
        if not made.not_applicable:
            return self.verdict(made.attack, made.patch, expected=False)
        verdict = Verdict(self.task.task_id, made.attack, self.repeat, False, None, "", 0.0)
        if hostile.prints(made.attack) and self.dataset.trusts_printed_output(self.task):
            return replace(verdict, error=f"{UNKNOWN}: {made.not_applicable}")
        return replace(verdict, not_applicable=made.not_applicable)

    def without_grade(self, name: str, failure: Exception, seconds: float, *, expected: bool) -> Verdict:
        """The verdict on a case that could not be graded."""
        limit = failure.limit if isinstance(failure, SandboxLimitExceeded) else ""
        if isinstance(failure, GraderTimeout):
            limit = "time"
        code = failure.code if isinstance(failure, StackError) else type(failure).__name__
        return Verdict(
            task_id=self.task.task_id,
            case=name,
            repeat=self.repeat,
            expected=expected,
            resolved=None,
            status="",
            seconds=seconds,
            error=f"limit: {limit}" if limit else f"{code}: {failure}"[:1000],
            limit=limit,
            setting=setting_of_limit(limit, self.conditions.settings),
        )


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
