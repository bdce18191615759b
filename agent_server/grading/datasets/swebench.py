"""SWE-bench rows, new and old, and SWE-Gym's: a repository at a commit, a test patch, an evaluation script.

Rows of swebench 5 bring `image, eval_script, log_parser, eval_type`; for older ones and for SWE-Gym's they are derived
here. Parsing, report and resolution are the official package's.
Invariant: what the official harness calls resolved is resolved here, unless pytest's own report contradicts the log.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agent_server.grading.datasets.base import (
    GRADING_COLUMNS,
    IMAGE_COLUMNS,
    Dataset,
    TestRun,
    named_image,
    parse_test_ids,
    text,
)
from agent_server.grading.datasets.row_test_patch import STOP_WHERE_A_PATCH_FAILS, applied_patches, check_fits
from agent_server.grading.datasets.swebench_parsers import is_pythons, names_of_tests, parse_log, parsers
from agent_server.grading.datasets.swebench_scripts import END_OUTPUT, START_OUTPUT, eval_script, reason_unknown
from agent_server.grading.datasets.swebench_specifications import specification
from agent_server.grading.outcomes import short_unittest_id
from agent_server.grading.patches import paths_in
from agent_server.grading.reporter.report import ReportedTest
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task
from client.errors import GraderError

END_MARKER = re.compile(r"^((?::|echo) '>>>>> End Test Output'.*)$", re.MULTILINE)
EVAL_TYPES = ("pass_and_fail", "fail_only")
DEFAULT_PARSER = "parse_log_pytest"  # of repositories that no harness knows


class SweBench(Dataset):
    """`apply_options`: of the `git apply` of the test patch."""

    name = "swebench"
    identifying_columns = frozenset(
        {"instance_id", "base_commit", "patch", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS"}
    )
    read_columns: ClassVar[tuple[str, ...]] = (
        "instance_id", *IMAGE_COLUMNS, "repo", "version", "base_commit", "log_parser",
        "eval_type", "image_assets",
    )  # fmt: skip
    text_columns: ClassVar[tuple[str, ...]] = ("problem_statement", "test_patch", "eval_script")
    task_columns: ClassVar[tuple[str, ...]] = (
        "repo",
        "version",
        "base_commit",
        "test_patch",
        "eval_script",
        "log_parser",
        "eval_type",
    )
    unused_columns = GRADING_COLUMNS - {"eval_script", "log_parser", "eval_type"}
    apply_options: ClassVar[str] = ""

    def recognises(self, row: Mapping[str, Any]) -> bool:
        return super().recognises(row) and bool(row.get("base_commit"))

    def reason_ungradable(self, row: Mapping[str, Any]) -> str:
        if not parse_test_ids(row.get("FAIL_TO_PASS")):
            return "its FAIL_TO_PASS is empty"
        if not text(row.get("base_commit")):
            return "its base_commit is empty"
        if not row.get("eval_script") and not row.get("test_patch"):
            return "it has neither an eval_script nor a test_patch to make one of"
        unknown = reason_unknown(text(row.get("repo")), text(row.get("version")))
        if unknown and not row.get("eval_script"):
            return unknown
        if (parser := text(row.get("log_parser"))) and parser not in parsers():
            return f"swebench has no log_parser {parser!r}"
        if _image_assets(row).get("test_patch"):
            return "its tests need the files in image_assets, which are fetched from the network"
        return self.reason_unknown_eval_type(row) or self.reason_unconfirmed(self.parser(row))

    @staticmethod
    def reason_unknown_eval_type(row: Mapping[str, Any]) -> str:
        """Why the outcomes cannot be judged; "" where they can."""
        kind = text(row.get("eval_type"))
        return "" if kind in ("", *EVAL_TYPES) else f"its eval_type must be {' or '.join(EVAL_TYPES)}, not {kind!r}"

    def reason_unconfirmed(self, parser: str) -> str:
        """Why outcomes that this parser reads cannot be trusted; "" where they can."""
        if is_pythons(parser):
            return ""
        return (
            f"{parser} reads what a runner prints that cannot report in another way; set"
            " AGENT_SERVER_DATASET=swebench_multilingual to trust printed output"
        )

    def script_of_tests(self, task: Task) -> str:
        """Between the markers of the test output: before them stand commands that install, with names of files."""
        script = self.test_script(task)
        start, end = script.find(START_OUTPUT), script.find(END_OUTPUT)
        return script[start:end] if 0 <= start < end else script

    def image(self, row: Mapping[str, Any]) -> str:
        """The row's, or the name under which SWE-bench and SWE-Gym publish it."""
        if named := named_image(row):
            return named
        instance = text(row.get("instance_id")).lower()
        known = specification(text(row.get("repo")))
        if not text(row.get("log_parser")) and (known is None or known.gym):
            return f"xingyaoww/sweb.eval.x86_64.{instance.replace('__', '_s_')}:latest"
        return f"swebench/sweb.eval.x86_64.{instance.replace('__', '_1776_')}:latest"

    def parser(self, row: Mapping[str, Any]) -> str:
        """The name of the parser of the row's log."""
        known = specification(text(row.get("repo")))
        return text(row.get("log_parser")) or (known.log_parser if known else DEFAULT_PARSER)

    def make_script(self, row: Mapping[str, Any], columns: Mapping[str, str]) -> str:
        """The evaluation script of a row without one. `columns`: those of the task."""
        return eval_script(columns)

    def task(self, row: Mapping[str, Any]) -> Task:
        task = super().task(row)
        columns = task.row
        known = specification(columns["repo"])
        columns["log_parser"] = self.parser(row)
        columns["eval_type"] = columns["eval_type"] or (known.eval_type if known else "pass_and_fail")
        columns["eval_script"] = columns["eval_script"] or self.make_script(row, columns)
        return task

    def preload(self, task: Task) -> None:
        import swebench.harness.grading  # noqa: F401

    def check_base(self, task: Task, sandbox: Sandbox) -> None:
        """The patches that the evaluation script applies, or else the row's test patch, must fit the base commit."""
        patches = list(applied_patches(task.row["eval_script"])) or [task.row["test_patch"]]
        for patch in filter(None, patches):
            check_fits(task, sandbox, patch, task.row["base_commit"], self.apply_options)

    def test_files(self, task: Task) -> tuple[str, ...]:
        """The files of the test patch; the evaluation script restores and patches them."""
        return paths_in(task.row["test_patch"])

    def test_script(self, task: Task) -> str:
        """The evaluation script, with the test command's own exit status recorded as the harness does."""
        from swebench.harness.constants import TEST_EXIT_CODE, TEST_EXIT_CODE_VAR

        record = rf'{TEST_EXIT_CODE_VAR}=$?\n\1\necho "{TEST_EXIT_CODE}: ${TEST_EXIT_CODE_VAR}"'
        script = END_MARKER.sub(record, task.row["eval_script"], count=1)
        return f"{STOP_WHERE_A_PATCH_FAILS}\nset -uxo pipefail\n{script}"

    def test_names(self, task: Task, tests: Sequence[ReportedTest]) -> list[tuple[str, ...]]:
        """In the form of the row's parser, which may cut or shorten what the runner prints."""
        return names_of_tests(task.row["log_parser"], tests, _spec(task))

    def outcomes(self, task: Task, run: TestRun) -> dict[str, str]:
        """As the runners reported them. Printed outcomes, read by the row's parser between the script's markers, count
        only where the dataset trusts them."""
        from swebench.harness.constants import END_TEST_OUTPUT, START_TEST_OUTPUT

        if START_TEST_OUTPUT not in run.log:  # after the marker the submission's code may print such signs itself
            _raise_on_broken_environment(task, run.log)
        if not self.trusts_printed_output(task):
            return super().outcomes(task, run)
        if START_TEST_OUTPUT not in run.log or END_TEST_OUTPUT not in run.log:
            return {}
        between = run.log.split(START_TEST_OUTPUT)[1].split(END_TEST_OUTPUT)[0]
        printed = parse_log(task.row["log_parser"], between, _spec(task))
        return {short_unittest_id(test): outcome for test, outcome in printed.items()}

    def resolved(self, task: Task, outcomes: Mapping[str, str]) -> bool:
        """The harness's rule, including ids that were cut short in the dataset."""
        from swebench.harness.constants import EvalType, ResolvedStatus
        from swebench.harness.grading import get_eval_tests_report, get_resolution_status

        if not outcomes:
            return False
        gold = {
            "FAIL_TO_PASS": list(map(short_unittest_id, task.fail_to_pass)),
            "PASS_TO_PASS": list(map(short_unittest_id, task.pass_to_pass)),
        }
        # fail_only counts a test without an outcome as passed. A runner's report shows that such a test did not run.
        trusted = self.trusts_printed_output(task)
        eval_type = EvalType(task.row["eval_type"]) if trusted else EvalType.PASS_AND_FAIL
        report = get_eval_tests_report(dict(outcomes), gold, eval_type=eval_type)
        return get_resolution_status(report) == ResolvedStatus.FULL.value


def _image_assets(row: Mapping[str, Any]) -> dict[str, Any]:
    """Binary files by the patch that they belong to, as SWE-bench Multimodal's rows name them."""
    assets = row.get("image_assets")
    if isinstance(assets, str) and assets.strip():
        assets = json.loads(assets)
    return assets if isinstance(assets, dict) else {}


def _raise_on_broken_environment(task: Task, log: str) -> None:
    """The harness's rule for a log without outcomes: some signs can only come from the environment. Raises
    GraderError."""
    from swebench.harness.infra_failure import TIER_ENVIRONMENT, classify_text

    reason, tier = classify_text(log) or ("", "")
    if tier == TIER_ENVIRONMENT:
        raise GraderError(
            f"row {task.task_id}: no test ran, and the log shows a broken environment ({reason}): {log[-1000:]}"
        )


def _spec(task: Task) -> Any:
    from swebench.harness.utils import make_test_spec

    lists = {"FAIL_TO_PASS": list(task.fail_to_pass), "PASS_TO_PASS": list(task.pass_to_pass)}
    return make_test_spec(task.row | lists | {"instance_id": task.task_id, "image": task.image_name})
