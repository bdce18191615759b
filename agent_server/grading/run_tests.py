"""Runs a row's tests in a sandbox and collects what their runners reported.

Invariant: the run is the row's own. Nothing is added to its command, its variables or its repository.
"""

import re
import secrets
from collections.abc import Collection
from pathlib import Path

from agent_server.grading.datasets.base import REPOSITORY, TestRun
from agent_server.grading.reporter.install import Reporter
from agent_server.grading.reporter.report import parse_report
from agent_server.grading.sandbox_files import read_text
from agent_server.private_files import open_private
from agent_server.sandboxes.base import KILLED, Sandbox
from agent_server.tasks.task import Task
from client.errors import GraderTimeout, SandboxLimitExceeded

LOG_TAIL_CHARACTERS = 4000


def run_tests(
    task: Task,
    sandbox: Sandbox,
    script: str,
    timeout_s: float,
    log_file: Path | None = None,
    canary: Collection[str] | None = None,
) -> TestRun:
    """Run `script` in the repository. Everything it prints goes to `log_file`. `canary`: as in Reporter.

    A sandbox limit other than time ends the tests early and is part of the result. Raises GraderTimeout after
    `timeout_s` seconds, GraderError where the reporter cannot be installed.
    """
    nonce = secrets.token_hex(8)
    script_path, log_path = f"/tmp/.tests.sh.{nonce}", f"/tmp/.log.{nonce}"
    reporter = Reporter(task, sandbox, canary)
    reporter.install()
    sandbox.write_file(script_path, script)
    # The shell prints its process id, and becomes the script: what the script starts descends from it.
    command = f"exec sh -c 'echo $$; exec bash {script_path} >{log_path} 2>&1 </dev/null'"
    try:
        result = sandbox.run(command, cwd=REPOSITORY, timeout_s=timeout_s)
        sandbox.kill_background()  # processes that the tests left must not write while the files are read
        log, lines = read_text(sandbox, log_path), reporter.collect()
        reporter.remove()
    except SandboxLimitExceeded as exceeded:
        _save(log_file, "")
        return TestRun("", KILLED, limit=exceeded.limit)
    _save(log_file, log)
    if result.limit == "time":
        raise GraderTimeout(
            f"row {task.task_id}: the tests did not end within {timeout_s:g} s; raise AGENT_SERVER_GRADING_TIMEOUT_S or"
            f" drop the row. They printed: {log[-LOG_TAIL_CHARACTERS:]}"
        )
    printed_pid = re.search(r"^\d+$", result.own_output, re.MULTILINE)  # the environment may make bash print more
    report = parse_report(lines, int(printed_pid[0]) if printed_pid else 0, REPOSITORY, reporter.secret)
    return TestRun(log=log, returncode=result.returncode, report=report, limit=result.limit)


def _save(log_file: Path | None, log: str) -> None:
    if log_file:
        with open(log_file, "w", encoding="utf-8", errors="surrogateescape", opener=open_private) as file:
            file.write(log)
