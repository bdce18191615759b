"""Runs a row's tests in a sandbox and collects the reports of their runner.

Invariant: the reports are written to new names in every run, so that no file can lie there before.
"""

import secrets
from pathlib import Path

from agent_server.grading.datasets.base import REPOSITORY, Dataset, TestRun, run_checked
from agent_server.grading.datasets.confirmation import runs_pytest
from agent_server.grading.reports import unittest_recorder
from agent_server.grading.reports.junit import parse_junit
from agent_server.grading.reports.unittest_output import parse_unittest_report
from agent_server.grading.sandbox_files import read_text
from agent_server.sandboxes.base import KILLED, Sandbox
from agent_server.tasks.task import Task
from client.errors import GraderTimeout, SandboxLimitExceeded

LOG_TAIL_CHARACTERS = 4000


def run_tests(
    dataset: Dataset, task: Task, sandbox: Sandbox, script: str, timeout_s: float, log_file: Path | None = None
) -> TestRun:
    """Run `script` in the repository. Everything it prints goes to `log_file`.

    A sandbox limit other than time ends the tests early and is part of the result. Raises GraderTimeout after
    `timeout_s` seconds.
    """
    nonce = secrets.token_hex(8)
    script_path, log_path, junit_path, unittest_path = (
        f"/tmp/.{kind}.{nonce}" for kind in ("tests.sh", "log", "xml", "unittest")
    )
    sandbox.write_file(script_path, script)
    # Both runners read their settings from the environment, wherever the script starts them.
    environment = f"PYTEST_ADDOPTS='--junitxml={junit_path} -o junit_family=xunit1 -p no:cacheprovider'"
    if not runs_pytest(script):
        folder = f"{unittest_path}.d"
        run_checked(sandbox, task, f"mkdir {folder}", cwd="/tmp")
        sandbox.write_file(f"{folder}/sitecustomize.py", Path(unittest_recorder.__file__).read_text())
        environment += f" {unittest_recorder.REPORT}={unittest_path} PYTHONPATH={folder}${{PYTHONPATH:+:$PYTHONPATH}}"
    command = f"{environment} bash {script_path} >{log_path} 2>&1 </dev/null"
    try:
        result = sandbox.run(command, cwd=REPOSITORY, timeout_s=timeout_s)
        sandbox.kill_background()  # processes that the tests left must not write while the files are read
        log, junit, recorded = (read_text(sandbox, path) for path in (log_path, junit_path, unittest_path))
    except SandboxLimitExceeded as exceeded:
        _save(log_file, "")
        return TestRun("", KILLED, limit=exceeded.limit)
    _save(log_file, log)
    if result.limit == "time":
        raise GraderTimeout(
            f"row {task.task_id}: the tests did not end within {timeout_s:g} s; raise AGENT_SERVER_GRADING_TIMEOUT_S or"
            f" drop the row. They printed: {log[-LOG_TAIL_CHARACTERS:]}"
        )
    files = [file for file in dataset.test_files(task) if file.endswith(".py")]
    return TestRun(
        log=log,
        returncode=result.returncode,
        pytest_outcomes=parse_junit(junit, files) if junit else None,
        unittest_outcomes=parse_unittest_report(recorded),
        limit=result.limit,
    )


def _save(log_file: Path | None, log: str) -> None:
    if log_file:
        log_file.write_text(log, encoding="utf-8", errors="surrogateescape")
