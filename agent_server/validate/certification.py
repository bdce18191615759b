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

from agent_server.grading import repository
from agent_server.grading.datasets.base import REPOSITORY, Dataset
from agent_server.grading.grade import GradingConfig, grade
from agent_server.grading.outcomes import failing
from agent_server.grading.placement import FreshSandbox
from agent_server.sandboxes import apptainer
from agent_server.sandboxes.base import Sandbox
from agent_server.sandboxes.limits import Limits
from agent_server.tasks.task import Task
from agent_server.validate import hostile
from agent_server.validate.verdicts import EMPTY, GOLD, Verdict
from client.errors import ConfigError, SandboxLimitExceeded, StackError

LIMITS = Limits(8 << 30, 1024, 4 << 30, 7200.0)  # memory, processes, disk, CPU seconds
START_TIMEOUT_S, SETUP_TIMEOUT_S, RESET_TIMEOUT_S = 120.0, 600.0, 60.0


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """Set-up of the sandboxes. `timeout_s`: of one run of the tests."""

    images: Path
    setup_command: str
    network: bool
    timeout_s: float


def certify(row: dict[str, Any], dataset: Dataset, task: Task, repeat: int, config: SandboxConfig) -> Iterator[Verdict]:
    """The verdicts of one repeat of the row's cases, gold first."""
    try:
        with _sandbox(task, config) as sandbox:
            repository.prepare(dataset, task, sandbox)
            dataset.apply_gold(row, task, sandbox)
            gold = repository.collect_diff(sandbox)
            sandbox.run("git reset -q --hard && git clean -fdq", cwd=REPOSITORY, timeout_s=RESET_TIMEOUT_S)
            attacks = list(hostile.submissions(dataset, task, sandbox, gold))
    except Exception as failure:  # a dataset class of the user's may raise anything
        yield Verdict(task.task_id, GOLD, repeat, True, None, "", 0.0, error=_describe(failure))
        return
    yield _verdict(dataset, task, repeat, config, GOLD, gold, expected=True)
    for case, patch in [(EMPTY, ""), *attacks]:
        yield _verdict(dataset, task, repeat, config, case, patch, expected=False)


def _verdict(
    dataset: Dataset, task: Task, repeat: int, config: SandboxConfig, case: str, patch: str, *, expected: bool
) -> Verdict:
    started = time.monotonic()
    try:
        with _sandbox(task, config) as sandbox:
            found = grade(dataset, task, patch, sandbox, FreshSandbox(), GradingConfig(config.timeout_s))
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
def _sandbox(task: Task, config: SandboxConfig) -> Iterator[Sandbox]:
    with tempfile.TemporaryDirectory(prefix="validate-") as scratch:
        sandbox = apptainer.start(
            apptainer.image_path(config.images, task.image_name),
            scratch=Path(scratch),
            env={},
            start_timeout_s=START_TIMEOUT_S,
            limits=LIMITS,
            network=config.network,
        )
        try:
            if config.setup_command:
                result = sandbox.run(config.setup_command, cwd=REPOSITORY, timeout_s=SETUP_TIMEOUT_S)
                if result.returncode != 0:
                    raise ConfigError(
                        f"the set-up command must end with 0; it ended with {result.returncode}: {result.output[-500:]}"
                    )
            yield sandbox
        finally:
            sandbox.close()


def _describe(failure: Exception) -> str:
    if isinstance(failure, SandboxLimitExceeded):
        return f"limit: {failure.limit}"
    code = failure.code if isinstance(failure, StackError) else type(failure).__name__
    return f"{code}: {failure}"[:1000]
