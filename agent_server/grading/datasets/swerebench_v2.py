"""SWE-rebench V2 rows: SWE-rebench's for many languages, with a repository in a folder of its own name.

Its log parsers are in no package. Those for pytest are swebench's; the others come from a checkout of
github.com/SWE-rebench/SWE-rebench-V2 on PYTHONPATH, as the module `lib.agent.log_parsers`.
Invariant: rows whose runner is not Python's are graded by what it prints, as the dataset's authors do. So the code
under test can forge their outcomes.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agent_server.grading.datasets.base import REPOSITORY, TestRun, run_checked, text
from agent_server.grading.datasets.row_test_patch import apply_command
from agent_server.grading.datasets.swebench_parsers import is_importable, is_pythons
from agent_server.grading.datasets.swebench_scripts import END, START
from agent_server.grading.datasets.swerebench import SweRebench, commands, install_config
from agent_server.grading.outcomes import all_passed
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task

PARSERS = "lib.agent.log_parsers"
# What runners add to a test's name and what differs in each run.
DURATIONS = (
    re.compile(r"\s*\[\s*\d+(?:\.\d+)?\s*(?:ms|s)\s*\]\s*$", re.IGNORECASE),
    re.compile(r"\s+in\s+\d+(?:\.\d+)?\s+(?:msec|sec)\b", re.IGNORECASE),
    re.compile(r"\s*\(\s*\d+(?:\.\d+)?\s*(?:ms|s)\s*\)\s*$", re.IGNORECASE),
)


class SweRebenchV2(SweRebench):
    name = "swerebench_v2"
    identifying_columns = SweRebench.identifying_columns | {"language"}
    read_columns = (*SweRebench.read_columns, "language")
    task_columns = (*SweRebench.task_columns, "language")
    apply_options = "--recount --ignore-space-change --whitespace=nowarn"

    def reason_unknown_parser(self, row: Mapping[str, Any]) -> str:
        if is_importable(self.parser(row)):
            return ""
        return (
            f"the log_parser {install_config(row).get('log_parser')!r} of its install_config is not known here; set"
            f" PYTHONPATH to a checkout of SWE-rebench/SWE-rebench-V2, whose {PARSERS} has it"
        )

    def parser(self, row: Mapping[str, Any]) -> str:
        name = super().parser(row)
        return name if is_python(row) and is_pythons(name) else f"{PARSERS}:{name}"

    def task(self, row: Mapping[str, Any]) -> Task:
        task = super().task(row)
        fail_to_pass, pass_to_pass = map(without_duration, task.fail_to_pass), map(without_duration, task.pass_to_pass)
        return replace(task, fail_to_pass=tuple(fail_to_pass), pass_to_pass=tuple(pass_to_pass))

    def set_up(self, task: Task, sandbox: Sandbox) -> None:
        folder = task.row["repo"].rpartition("/")[2]
        run_checked(sandbox, task, f"[ -e {REPOSITORY} ] || ln -s '/{folder}' {REPOSITORY}", cwd="/")

    def make_script(self, row: Mapping[str, Any], columns: Mapping[str, str]) -> str:
        """The harness's: the test patch, then the commands up to the first that fails."""
        apply = apply_command(columns["test_patch"], self.apply_options)
        tests = ["(", "set +uxo pipefail; set -e", *commands(row, "test_cmd"), ")"]
        return "\n".join([f"cd {REPOSITORY}", apply, START, *tests, END])

    def trusts_printed_output(self, task: Task) -> bool:
        return not is_python(task.row)

    def outcomes(self, task: Task, run: TestRun) -> dict[str, str]:
        return {without_duration(test): outcome for test, outcome in super().outcomes(task, run).items()}

    def resolved(self, task: Task, outcomes: Mapping[str, str]) -> bool:
        """The harness's rule: all expected tests passed, and none was skipped."""
        return all_passed((*task.fail_to_pass, *task.pass_to_pass), outcomes)


def is_python(row: Mapping[str, Any]) -> bool:
    """Whether the row's tests run under Python, and can report themselves."""
    return text(row.get("language")).lower() == "python"


def without_duration(test: str) -> str:
    """The test's name without the time that it took."""
    for pattern in DURATIONS:
        test = pattern.sub("", test)
    return test.strip()
