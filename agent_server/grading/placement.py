"""Strategies for the sandbox that a submission is graded in: a fresh one, or the agent's own.

Invariant: in both, the tests run on the row's base with the submission applied. Nothing else of the agent's
repository decides a grade.
"""

from typing import Literal, Protocol

from agent_server.grading import protected_snapshots, repository
from agent_server.grading.attribution import attribute_to_submission
from agent_server.grading.datasets.base import Dataset
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task


class GradingSandboxStrategy(Protocol):
    """Preparation and reset of the repository for one session. `in_agent_sandbox`: grade in the agent's sandbox."""

    in_agent_sandbox: bool

    def prepare(self, dataset: Dataset, task: Task, sandbox: Sandbox) -> None:
        """Make the agent's repository in the agent's sandbox. Raises GraderError where row and image do not fit."""

    def restore_base(self, dataset: Dataset, task: Task, sandbox: Sandbox) -> protected_snapshots.Snapshot:
        """Bring the repository in the grading sandbox to the row's base, and back up its protected files. Raises
        GraderError where row and image do not fit, SubmissionFailed where the agent made it impossible."""


class FreshSandbox:
    """Grading in a new sandbox of the same image, which the agent has never seen."""

    in_agent_sandbox = False

    def prepare(self, dataset: Dataset, task: Task, sandbox: Sandbox) -> None:
        repository.prepare(dataset, task, sandbox)

    def restore_base(self, dataset: Dataset, task: Task, sandbox: Sandbox) -> protected_snapshots.Snapshot:
        repository.prepare_fresh(dataset, task, sandbox)
        return protected_snapshots.back_up(dataset, task, sandbox)


class AgentSandbox:
    """Grading in the agent's own sandbox: its processes ended, its repository reset, what it installed kept."""

    in_agent_sandbox = True
    _base: repository.BaseState  # set by `prepare`

    def prepare(self, dataset: Dataset, task: Task, sandbox: Sandbox) -> None:
        self._base = repository.prepare_and_record(dataset, task, sandbox)

    def restore_base(self, dataset: Dataset, task: Task, sandbox: Sandbox) -> protected_snapshots.Snapshot:
        with attribute_to_submission("the agent left no repository to patch"):
            repository.reset_to_base(dataset, task, sandbox, self._base)
            return protected_snapshots.back_up(dataset, task, sandbox)


def select_strategy(setting: Literal["fresh", "same"]) -> GradingSandboxStrategy:
    """The strategy of this value of AGENT_SERVER_GRADING_SANDBOX, for one session."""
    return AgentSandbox() if setting == "same" else FreshSandbox()
