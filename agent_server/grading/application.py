"""Application of a submission: base restored, patch applied, protected files restored.

Invariant: when tests run, every protected file is the row's, and the files that the submission changed are known.
"""

from collections.abc import Collection
from dataclasses import dataclass

from agent_server.grading import patches, protected_snapshots, repository
from agent_server.grading.attribution import SubmissionFailed, attribute_to_submission
from agent_server.grading.datasets.base import Dataset
from agent_server.grading.placement import GradingSandboxStrategy
from agent_server.grading.run_tests import LOG_TAIL_CHARACTERS
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task


@dataclass(slots=True)
class Application:
    """Fields of the Grade about applying the submission; filled step by step, so that a failure keeps those so far."""

    patch: dict[str, int]
    policy: protected_snapshots.Policy
    applied_by: str = ""
    touched: tuple[str, ...] = ()
    planted: tuple[str, ...] = ()


def prepare(
    dataset: Dataset,
    task: Task,
    submission: str,
    sandbox: Sandbox,
    strategy: GradingSandboxStrategy,
    application: Application,
    planted: Collection[str] = (),
) -> set[str]:
    """Bring the sandbox to the state in which the tests run. `planted`: files that are restored too. Returns the files
    that the submission changed, relative to the repository, without the restored ones. Raises SubmissionFailed, and
    GraderError where row and image do not fit."""
    if submission and not patches.is_patch(submission):
        raise SubmissionFailed("not_a_patch", submission[:LOG_TAIL_CHARACTERS])
    before = strategy.restore_base(dataset, task, sandbox)
    dataset.check_base(task, sandbox)
    changed = _apply(dataset, task, submission, sandbox, before, application) if submission else set()
    if planted:
        restore_planted(task, sandbox, planted)
    repository.restore_hidden(task, sandbox)
    return changed.difference(planted)


def as_utf8(submission: str) -> str:
    """The submission without lone surrogates, which cannot be written to a file."""
    return submission.encode(errors="replace").decode()


def _apply(
    dataset: Dataset,
    task: Task,
    submission: str,
    sandbox: Sandbox,
    before: protected_snapshots.Snapshot,
    application: Application,
) -> set[str]:
    """Apply the submission and undo what it may not change. Returns the files that remain changed. Raises
    SubmissionFailed."""
    with attribute_to_submission("its files cannot be written or listed in the sandbox"):
        patches.write(submission, sandbox)
        protected_snapshots.back_up_patched(task, sandbox, patches.SUBMISSION)
        application.applied_by, reason = patches.apply(submission, sandbox)
        if not application.applied_by:
            raise SubmissionFailed("patch_failed", reason)
        changed = protected_snapshots.changed_files(task, sandbox)
        if packages := protected_snapshots.installed_packages(changed):
            raise SubmissionFailed("patch_failed", f"the patch changes installed packages: {', '.join(packages[:5])}")
        protected = before.changed(protected_snapshots.snapshot(dataset, task, sandbox, before.tests))
        application.touched = protected_snapshots.reportable(protected)
        if application.touched and application.policy == "reject":
            raise SubmissionFailed("rejected")
        strip = application.policy == "strip"
        to_restore = protected if strip else protected_snapshots.always_restored(before.tests, protected)
        if to_restore:
            protected_snapshots.restore(task, sandbox, before, to_restore)
        return set(changed) - {path.removeprefix("./") for path in to_restore}


def restore_planted(task: Task, sandbox: Sandbox, planted: Collection[str]) -> None:
    """Restore files that the submission changed and the tests were taken from. Raises SubmissionFailed."""
    with attribute_to_submission("the test files that it changes cannot be restored"):
        protected_snapshots.restore_patched(task, sandbox, planted)
