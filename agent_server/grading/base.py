"""Grading a submission: a fresh sandbox of the same image, the bug, the patch, the row's tests restored, run, read.

Invariant: grading sees only the submission, never the agent's sandbox; tests that could not be run raise, they do not
score.
"""

import shlex
import time
from dataclasses import asdict, dataclass
from typing import Any

from agent_server.grading.outcomes import parse_pytest_summary, resolved
from agent_server.sandboxes.base import CommandResult, Sandbox
from agent_server.tasks.catalog import Task
from client.errors import GraderError, GraderTimeout, SandboxLimitExceeded

REPOSITORY = "/testbed"
BUG, SUBMISSION = "/tmp/bug.patch", "/tmp/submission.patch"
# Each step is tried on what the one before left untouched; its name is recorded.
LADDER = {
    "git apply": f"git apply {{exclude}} {SUBMISSION}",
    "git apply, whitespace ignored": f"git apply --ignore-whitespace --recount {{exclude}} {SUBMISSION}",
    "patch -p1": f"patch -p1 --batch --forward --dry-run -i {SUBMISSION} && patch -p1 --batch --forward -i {SUBMISSION}",
}
SETUP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Grade:
    """`status`: graded, no_submission, or patch_failed. `tests`: outcome by test id, MISSING where the runner named none.
    `limit`: what ended the tests early, as in CommandResult."""

    resolved: bool
    status: str
    applied_by: str = ""
    tests: dict[str, str] | None = None
    limit: str = ""
    log: str = ""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def reward(self) -> float:
        """1.0 for a resolved task, else 0.0."""
        return float(self.resolved)


NO_SUBMISSION = Grade(resolved=False, status="no_submission")
LOG_TAIL_CHARACTERS = 4000


def grade(task: Task, submission: str, sandbox: Sandbox, *, timeout_s: float) -> Grade:
    """Run the row's tests on `submission` (a unified diff) in `sandbox`, which must be fresh. Tests that exceed a limit of
    the sandbox have failed.

    Raises GraderTimeout when the tests outlast `timeout_s`, GraderError when the row's own patch does not apply.
    """
    started = time.monotonic()
    apply_bug(task, sandbox)
    # A diff may lack its last newline by the time it has been through a chat; git apply insists on it.
    sandbox.write_file(SUBMISSION, submission if submission.endswith("\n") else submission + "\n")
    applied_by = _apply(task, sandbox)
    if not applied_by:
        return Grade(False, "patch_failed", seconds=time.monotonic() - started)
    files = " ".join(map(shlex.quote, task.test_files()))
    restored = sandbox.run(f"git checkout -q HEAD -- {files}", cwd=REPOSITORY, timeout_s=SETUP_TIMEOUT_S)
    if restored.returncode != 0:
        raise GraderError(f"row {task.task_id}: its test files cannot be restored from the image: {restored.output[-500:]}")
    try:
        result = sandbox.run(task.test_command, cwd=REPOSITORY, timeout_s=timeout_s)
    except SandboxLimitExceeded as exceeded:
        result = CommandResult("", 137, time.monotonic() - started, exceeded.limit)
    if result.limit == "time":
        raise GraderTimeout(f"row {task.task_id}: the tests did not end within {timeout_s:g} s; raise AGENT_SERVER_GRADING_TIMEOUT_S or drop the row")
    outcomes = parse_pytest_summary(result.output)
    wanted = (*task.fail_to_pass, *task.pass_to_pass)
    return Grade(
        resolved=not result.limit and resolved(outcomes, task.fail_to_pass, task.pass_to_pass),
        status="graded",
        applied_by=applied_by,
        tests={test: outcomes.get(test, "MISSING") for test in wanted},
        limit=result.limit,
        log=result.output[-LOG_TAIL_CHARACTERS:],
        seconds=time.monotonic() - started,
    )


def prepare(task: Task, sandbox: Sandbox) -> None:
    """Make the agent's repository: the bug is in, the row's failing tests are out, and the history holds one commit.

    A new repository, because the old one's objects hold the fix. Tracked files stay tracked, ignored or not.
    Raises GraderError where the row's patch does not apply.
    """
    apply_bug(task, sandbox)
    hidden = " ".join(shlex.quote(file) for file in sorted({test.split("::")[0] for test in task.fail_to_pass}))
    identity = "-c user.name=base -c user.email=base@localhost"
    _must(
        sandbox,
        task,
        f"git rm -q --cached --ignore-unmatch -- {hidden} && rm -f -- {hidden} && git ls-files -z >/tmp/.tracked && rm -rf .git {BUG}"
        f" && git init -q && git add -f --pathspec-from-file=/tmp/.tracked --pathspec-file-nul"
        f" && git {identity} commit -q -m base && rm /tmp/.tracked",
    )


def collect_diff(sandbox: Sandbox) -> str:
    """The agent's changes to its repository, new files included, as a patch; empty when it changed nothing."""
    result = sandbox.run("git add -A && git diff --cached --binary HEAD", cwd=REPOSITORY, timeout_s=SETUP_TIMEOUT_S)
    return result.output if result.returncode == 0 else ""


def apply_bug(task: Task, sandbox: Sandbox) -> None:
    """Put the row's bug into the image's repository. Raises GraderError."""
    if task.bug_patch:
        sandbox.write_file(BUG, task.bug_patch)
        _must(sandbox, task, f"git apply {BUG}")


def _apply(task: Task, sandbox: Sandbox) -> str:
    exclude = " ".join(f"--exclude={shlex.quote(file)}" for file in task.test_files())
    for name, command in LADDER.items():
        if sandbox.run(command.format(exclude=exclude), cwd=REPOSITORY, timeout_s=SETUP_TIMEOUT_S).returncode == 0:
            return name
    return ""


def _must(sandbox: Sandbox, task: Task, command: str) -> None:
    result = sandbox.run(command, cwd=REPOSITORY, timeout_s=SETUP_TIMEOUT_S)
    if result.returncode != 0:
        raise GraderError(f"row {task.task_id}: its image and its patch do not fit: {result.output[-500:]}")
