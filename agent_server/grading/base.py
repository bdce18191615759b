"""From a submission to a grade: the repository as the row begins, the patch, the protected files restored, the tests, their words.

Invariant: grading sees only the submission; tests that could not be run raise, they do not score.
"""

import base64
import binascii
import gzip
import math
import secrets
import time
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent_server.grading import patches, protected, repository, unittest_report
from agent_server.grading.datasets.base import REPOSITORY, SETUP_TIMEOUT_S, Dataset, TestRun, run_checked, runs_pytest
from agent_server.grading.outcomes import expected_outcomes, parse_junit, parse_unittest_report
from agent_server.sandboxes.base import CommandResult, Sandbox
from agent_server.tasks.task import Task
from client.errors import GraderError, GraderTimeout, SandboxDied, SandboxLimitExceeded

MOST_READ_BYTES = 64 * 2**20
CHUNK_BYTES = 8 * 2**20
LOG_TAIL_CHARACTERS = 4000


@dataclass(frozen=True, slots=True)
class Grade:
    """`status`: graded, no_submission, not_a_patch, patch_failed, or rejected (by the policy on protected paths). `tests`: outcome by
    test id of those that count, MISSING where the runner named none. `touched`: protected paths that the submission changed.
    `given_reward`: what a reward command printed. `limit`: what ended the tests early, as in CommandResult. `log`: the end of what the tests printed, or why there were none."""

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
        """As it goes into the session's record."""
        return {name: value for name, value in asdict(self).items() if name not in ("fail_to_pass", "pass_to_pass")}


NO_SUBMISSION = Grade(resolved=False, status="no_submission")


@dataclass(frozen=True, slots=True)
class GradingConfig:
    """How a server grades. `command`, if any, runs instead of the row's tests and prints the reward as its last line."""

    timeout_s: float
    policy: protected.Policy = "strip"
    command: str = ""


def grade(
    dataset: Dataset,
    task: Task,
    submission: str,
    sandbox: Sandbox,
    rules: GradingConfig,
    *,
    begun: repository.BaseState | None = None,
    log_file: Path | None = None,
) -> Grade:
    """Run the row's tests on `submission` (a unified diff; "": on the repository as it is) in `sandbox`, a fresh one; or, with
    `begun` as `repository.prepare` answered it, the agent's own. Tests that exceed a limit of the sandbox have failed. All that
    they print goes to `log_file`.

    Raises GraderTimeout when the tests outlast `timeout_s`, GraderError when row and image do not fit.
    """
    started = time.monotonic()
    facts: dict[str, Any] = {"patch": patches.statistics(submission).as_dict(), "policy": rules.policy}
    submission = submission.encode(errors="replace").decode()  # half a surrogate is no text
    if submission and not patches.is_patch(submission):
        return Grade(
            False, "not_a_patch", **facts, log=submission[:LOG_TAIL_CHARACTERS], seconds=time.monotonic() - started
        )
    try:
        if begun is None:
            repository.prepare_fresh(dataset, task, sandbox)
        else:
            repository.reset_to_base(dataset, task, sandbox, begun)
        before = protected.snapshot(dataset, task, sandbox, keep=True)
    except (GraderError, SandboxDied, SandboxLimitExceeded) as cannot:
        if begun is None or _has_died(sandbox, cannot):
            raise
        return Grade(
            False,
            "patch_failed",
            **facts,
            log=f"the agent left no repository to patch: {cannot}",
            seconds=time.monotonic() - started,
        )
    if submission:
        refused = _submit(dataset, task, submission, sandbox, rules.policy, before, facts)
        if refused:
            status, said = refused
            return Grade(False, status, **facts, log=said, seconds=time.monotonic() - started)
    repository.restore_hidden(dataset, task, sandbox)
    run, limit = _run_tests(dataset, task, sandbox, rules, log_file)
    if log_file:
        log_file.write_text(run.log, encoding="utf-8", errors="surrogateescape")
        facts["log_path"] = str(log_file)
    if rules.command:
        facts["given_reward"] = 0.0 if limit else _printed_reward(task, run)
    outcomes = {} if limit or rules.command else dataset.outcomes(task, run)
    named = {side: expected_outcomes(getattr(task, side), outcomes) for side in ("fail_to_pass", "pass_to_pass")}
    return Grade(
        resolved=facts["given_reward"] >= 1.0 if rules.command else not limit and dataset.resolved(task, outcomes),
        status="graded",
        tests=named["fail_to_pass"] | named["pass_to_pass"],
        **named,
        **facts,
        limit=limit,
        log=run.log[-LOG_TAIL_CHARACTERS:],
        seconds=time.monotonic() - started,
    )


def _submit(
    dataset: Dataset,
    task: Task,
    submission: str,
    sandbox: Sandbox,
    policy: protected.Policy,
    before: protected.Snapshot,
    facts: dict[str, Any],
) -> tuple[str, str] | None:
    """Apply it and take back what it may not change; None, or the grade's status and why it is not run. What fails here and did not
    fail before the submission is the submission's doing."""
    try:
        facts["applied_by"], said = patches.apply(submission, sandbox)
        if not facts["applied_by"]:
            return "patch_failed", said
        if installed := protected.installed(task, sandbox):
            return "patch_failed", f"the patch changes installed packages: {installed}"
        changed = before.changed(protected.snapshot(dataset, task, sandbox))
        facts["touched"] = protected.counting(changed)
        if facts["touched"] and policy == "reject":
            return "rejected", ""
        if back := changed if policy == "strip" else protected.always_restored(dataset, task, changed):
            protected.restore(task, sandbox, before, back)
    except (GraderError, SandboxDied, SandboxLimitExceeded) as cannot:
        if _has_died(sandbox, cannot):
            raise
        return "patch_failed", f"its files cannot be had in the sandbox: {cannot}"
    return None


def _has_died(sandbox: Sandbox, failure: Exception) -> bool:
    """Whether it has, of itself: a file that cannot be written, for want of room, reads the same."""
    try:
        return (
            isinstance(failure, SandboxDied) and sandbox.run("true", cwd="/", timeout_s=SETUP_TIMEOUT_S).returncode != 0
        )
    except SandboxDied:
        return True


def _printed_reward(task: Task, run: TestRun) -> float:
    last = next((line for line in reversed(run.log.splitlines()) if line.strip()), "")
    try:
        reward = float(last)
    except ValueError:
        reward = math.nan
    if run.returncode != 0 or not 0.0 <= reward <= 1.0:
        raise GraderError(
            f"row {task.task_id}: AGENT_SERVER_REWARD_COMMAND must end with 0 and print a number from 0 to 1 as its last line;"
            f" it ended with {run.returncode} and printed {last!r:.200}"
        )
    return reward


def _run_tests(
    dataset: Dataset, task: Task, sandbox: Sandbox, rules: GradingConfig, log_file: Path | None
) -> tuple[TestRun, str]:
    """What the tests left, and the limit that ended them early."""
    nonce = secrets.token_hex(8)
    script, log, report, lines = (f"/tmp/.{kind}.{nonce}" for kind in ("tests.sh", "log", "xml", "unittest"))
    tests = rules.command or dataset.test_script(task)
    sandbox.write_file(script, tests)
    # Both runners find what they need wherever the script starts them. The reports' names are new each time, so that nothing can lie
    # there before.
    environment = f"PYTEST_ADDOPTS='--junitxml={report} -o junit_family=xunit1 -p no:cacheprovider'"
    if not runs_pytest(tests):
        run_checked(sandbox, task, f"mkdir {lines}.d", cwd="/tmp")
        sandbox.write_file(f"{lines}.d/sitecustomize.py", Path(unittest_report.__file__).read_text())
        environment += f" {unittest_report.REPORT}={lines} PYTHONPATH={lines}.d${{PYTHONPATH:+:$PYTHONPATH}}"
    try:
        result = sandbox.run(
            f"{environment} bash {script} >{log} 2>&1 </dev/null", cwd=REPOSITORY, timeout_s=rules.timeout_s
        )
        sandbox.kill_background()  # what the tests left running must not write on while we read
        said, xml, told = (read_file(sandbox, path) for path in (log, report, lines))
    except SandboxLimitExceeded as exceeded:
        return TestRun("", 137), exceeded.limit
    if result.limit == "time":
        if log_file:
            log_file.write_text(said, encoding="utf-8", errors="surrogateescape")
        raise GraderTimeout(
            f"row {task.task_id}: the tests did not end within {rules.timeout_s:g} s; raise AGENT_SERVER_GRADING_TIMEOUT_S or drop the row. They printed: {said[-LOG_TAIL_CHARACTERS:]}"
        )
    files = [file for file in dataset.test_files(task) if file.endswith(".py")]
    return TestRun(
        said, result.returncode, parse_junit(xml, files) if xml else None, parse_unittest_report(told)
    ), result.limit


def read_file(sandbox: Sandbox, path: str) -> str:
    """A text file of the sandbox, up to MOST_READ_BYTES of its end; "" where there is none that can be read."""
    packed, start = b"", 1
    try:
        while True:
            command = f"[ -f {path} ] && tail -c {MOST_READ_BYTES} {path} | gzip -c | tail -c +{start} | head -c {CHUNK_BYTES} | base64 -w0"
            result: CommandResult = sandbox.run(command, cwd="/", timeout_s=SETUP_TIMEOUT_S)
            chunk = base64.b64decode(result.output) if result.returncode == 0 else b""
            packed, start = packed + chunk, start + len(chunk)
            if len(chunk) < CHUNK_BYTES:
                return gzip.decompress(packed).decode(errors="replace") if packed else ""
    except (OSError, EOFError, zlib.error, binascii.Error):
        return ""  # snapshots are read in this way too: what worked then, the tests have spoilt
