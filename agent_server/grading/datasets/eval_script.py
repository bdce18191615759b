"""Rows with an evaluation script of their own: `instance_id, problem_statement, eval_script`, and optionally an image.

Invariant: without a parser's name the script's exit code is the outcome, of one test called `eval_script`.
"""

import re
from collections.abc import Mapping
from typing import Any

from agent_server.grading.datasets.base import Dataset, TestRun, parse_test_ids, text
from agent_server.grading.datasets.confirmation import confirmed_by_runner
from agent_server.grading.datasets.swebench_parsers import parse_log, parsers
from agent_server.grading.reports.pytest_summary import parse_pytest_summary
from agent_server.grading.reports.unittest_output import parse_unittest_output
from agent_server.tasks.task import Task

WHOLE_SCRIPT = "eval_script"


def _pytest_outcomes(run: TestRun) -> dict[str, str]:
    """pytest's own report; the printed summary where the script kept pytest from writing ours."""
    return run.pytest_outcomes if run.pytest_outcomes is not None else parse_pytest_summary(run.log)


def _unittest_outcomes(run: TestRun) -> dict[str, str]:
    return run.unittest_outcomes or parse_unittest_output(run.log)


OWN_PARSERS = {"pytest": _pytest_outcomes, "unittest": _unittest_outcomes}
PYTEST = re.compile(r"^[^#\n]*(?:^|[\s;&|(/])(?:pytest|py\.test)(?:[\s;&|)]|$)", re.MULTILINE)
# Scripts in which pytest may not write our report.
OTHER_REPORT = re.compile(r"junit|PYTEST_ADDOPTS|\benv -i\b|\btox\b|\bnox\b|\bpip3? install\b.*pytest")


class EvalScript(Dataset):
    name = "eval_script"
    identifying_columns = frozenset({"instance_id", "problem_statement", "eval_script"})
    read_columns = ("instance_id", "image", "image_name", "docker_image", "FAIL_TO_PASS", "log_parser")
    text_columns = ("problem_statement", "eval_script")
    task_columns = ("eval_script", "log_parser", "base_commit", "repo", "version")

    def reason_ungradable(self, row: Mapping[str, Any]) -> str:
        if not row.get("eval_script"):
            return "its eval_script is empty"
        if not self.image(row):
            return "it names no image, and AGENT_SERVER_DEFAULT_IMAGE is not set"
        if not (parser := text(row.get("log_parser"))):
            return ""
        if parser not in OWN_PARSERS and parser not in parsers():
            return f"log_parser is {' or '.join(OWN_PARSERS)} or one of swebench's, not {parser!r}"
        return "" if parse_test_ids(row.get("FAIL_TO_PASS")) else "it has a log_parser and no FAIL_TO_PASS to look for"

    def image(self, row: Mapping[str, Any]) -> str:
        return text(row.get("image")) or text(row.get("image_name")) or text(row.get("docker_image"))

    def task(self, row: Mapping[str, Any]) -> Task:
        task = super().task(row)
        if task.row["log_parser"]:
            return task
        return Task(task.task_id, self.name, task.image_name, task.problem_statement, (WHOLE_SCRIPT,), (), task.row)

    def test_files(self, task: Task) -> tuple[str, ...]:
        """Also all folders of tests at the top, which a script may run without naming them."""
        return (*super().test_files(task), "tests", "test")

    def test_script(self, task: Task) -> str:
        return task.row["eval_script"]

    def outcomes(self, task: Task, run: TestRun) -> dict[str, str]:
        """By exit code, or by the parser that the row names. Code under test can end pytest with 0 before a test has
        run; pytest writes no report then."""
        if not (parser := task.row["log_parser"]):
            script = task.row["eval_script"]
            broke_off = run.pytest_outcomes is None and PYTEST.search(script) and not OTHER_REPORT.search(script)
            return {WHOLE_SCRIPT: "PASSED" if run.returncode == 0 and not broke_off else "FAILED"}
        if parser in OWN_PARSERS:
            return OWN_PARSERS[parser](run)
        return confirmed_by_runner(
            parse_log(parser, run.log, None), (*task.fail_to_pass, *task.pass_to_pass), self.test_script(task), run
        )
