"""Rows with an evaluation script of their own: `instance_id, problem_statement, eval_script`, and optionally an image.

Invariant: without a parser's name the script's exit code is the outcome, of one test called `eval_script`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agent_server.grading.datasets.base import (
    GRADING_COLUMNS,
    IMAGE_COLUMNS,
    Dataset,
    TestRun,
    named_image,
    parse_test_ids,
    text,
)
from agent_server.grading.datasets.row_test_patch import STOP_WHERE_A_PATCH_FAILS
from agent_server.grading.datasets.swebench_parsers import is_pythons, names_of_tests, parse_log, parsers
from agent_server.grading.reporter.report import ReportedTest
from agent_server.grading.reports.pytest_summary import parse_pytest_summary
from agent_server.grading.reports.unittest_output import parse_unittest_output
from agent_server.tasks.task import Task

WHOLE_SCRIPT = "eval_script"


PRINTED = {"pytest": parse_pytest_summary, "unittest": parse_unittest_output}  # of rows that trust printed output
RUNNER = re.compile(r"^[^#\n]*(?:^|[\s;&|(/])(?:pytest|py\.test|unittest)(?:[\s;&|)]|$)", re.MULTILINE)


class EvalScript(Dataset):
    name = "eval_script"
    identifying_columns = frozenset({"instance_id", "problem_statement", "eval_script"})
    read_columns = ("instance_id", *IMAGE_COLUMNS, "log_parser")
    text_columns = ("problem_statement", "eval_script")
    task_columns = ("eval_script", "log_parser", "base_commit", "repo", "version")
    unused_columns = GRADING_COLUMNS - {"eval_script", "log_parser"}

    def reason_ungradable(self, row: Mapping[str, Any]) -> str:
        if not row.get("eval_script"):
            return "its eval_script is empty"
        if not self.image(row):
            return "it names no image, and AGENT_SERVER_DEFAULT_IMAGE is not set"
        if not (parser := text(row.get("log_parser"))):
            return ""
        if parser not in PRINTED and parser not in parsers():
            return f"log_parser is {' or '.join(PRINTED)} or one of swebench's, not {parser!r}"
        trusts = type(self).trusts_printed_output is not Dataset.trusts_printed_output
        if parser not in PRINTED and not is_pythons(parser) and not trusts:
            return (
                f"{parser} reads what a runner prints that cannot report in another way; derive a class of EvalScript"
                " with trusts_printed_output to believe it"
            )
        return "" if parse_test_ids(row.get("FAIL_TO_PASS")) else "it has a log_parser and no FAIL_TO_PASS to look for"

    def image(self, row: Mapping[str, Any]) -> str:
        return named_image(row)

    def task(self, row: Mapping[str, Any]) -> Task:
        task = super().task(row)
        if task.row["log_parser"]:
            return task
        return Task(task.task_id, self.name, task.image_name, task.problem_statement, (WHOLE_SCRIPT,), (), task.row)

    def test_files(self, task: Task) -> tuple[str, ...]:
        """Also all folders of tests at the top, which a script may run without naming them."""
        return (*super().test_files(task), "tests", "test")

    def test_script(self, task: Task) -> str:
        return f"{STOP_WHERE_A_PATCH_FAILS}\n{task.row['eval_script']}"

    def test_names(self, task: Task, tests: Sequence[ReportedTest]) -> list[tuple[str, ...]]:
        parser = task.row["log_parser"]
        if parser in ("", *PRINTED):
            return super().test_names(task, tests)
        return names_of_tests(parser, tests, None)

    def outcomes(self, task: Task, run: TestRun) -> dict[str, str]:
        """By exit code, or as the runners reported them. Printed outcomes count only where the row trusts them."""
        if not (parser := task.row["log_parser"]):
            return {WHOLE_SCRIPT: "PASSED" if run.returncode == 0 and not self._broke_off(task, run) else "FAILED"}
        if not self.trusts_printed_output(task):
            return super().outcomes(task, run)
        return PRINTED[parser](run.log) if parser in PRINTED else parse_log(parser, run.log, None)

    def canary_tests(self, task: Task, passed: Sequence[ReportedTest]) -> list[ReportedTest]:
        """Of a script without a parser, all tests that its runners ran."""
        return super().canary_tests(task, passed) if task.row["log_parser"] else list(passed)

    @staticmethod
    def _broke_off(task: Task, run: TestRun) -> bool:
        """Whether a test runner did not end by itself: code under test can end its process with 0 before a test has
        run."""
        if run.report.is_whole:
            return False
        return run.report.was_started or RUNNER.search(task.row["eval_script"]) is not None
