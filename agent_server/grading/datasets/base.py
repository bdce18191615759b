"""The interface between a dataset's rows and grading: image, repository, tests and outcomes of each row.

Derive from Dataset to add a dataset of your own; docs/datasets.md has an example.
Invariant: an instance has no state. Everything about a row is in its Task, everything about a run in its TestRun.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agent_server.grading import outcomes as rules
from agent_server.grading.reporter.report import ReportedTest, RunReport
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.characters import whole_characters
from agent_server.tasks.task import Task
from client.errors import GraderError

REPOSITORY = "/testbed"  # in every image, or made so by `set_up`
SETUP_TIMEOUT_S = 300.0
GOLD_PATCH = "/tmp/.fix.patch"
IMAGE_COLUMNS = ("docker_image", "image", "image_name")  # the first that is filled
# Columns of known datasets that say how a row is graded.
GRADING_COLUMNS = frozenset({
    "test_cmd", "test_cmds", "test_command", "test_commands", "test_framework", "rebuild_cmds", "print_cmds",
    "install_config", "eval_script", "eval_type", "log_parser", "parser", "run_script", "parser_script",
    "before_repo_set_cmd", "selected_test_files_to_run", "expected_output_json",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class TestRun:
    """What one run of a row's tests left behind.

    `log`: everything printed. `returncode`: of the test script. `report`: what the test runners did. `limit`: the
    sandbox limit that ended the tests early, as in CommandResult, or "".
    """

    __test__: ClassVar[bool] = False  # not for pytest to collect

    log: str
    returncode: int
    report: RunReport = RunReport()
    limit: str = ""


class Dataset:
    """Rows with `image_name`, FAIL_TO_PASS, PASS_TO_PASS and a `test_cmd` that runs pytest. Subclasses override what
    differs.

    `identifying_columns`: rows that have all of these are of this kind. `read_columns` and `list_columns`, those that
    `tests` reads: read of every row at the start. `text_columns`: large ones, of which at the start only their presence
    is read. `task_columns`: go with the task.
    `unused_columns`: a row that fills one of these is refused, since the class would grade it in another way than its
    author says.
    """

    name: ClassVar[str] = ""
    identifying_columns: ClassVar[frozenset[str]] = frozenset()
    read_columns: ClassVar[tuple[str, ...]] = ("instance_id", "image_name", "test_cmd")
    list_columns: ClassVar[tuple[str, ...]] = ("FAIL_TO_PASS", "PASS_TO_PASS")
    text_columns: ClassVar[tuple[str, ...]] = ("problem_statement",)
    task_columns: ClassVar[tuple[str, ...]] = ("test_cmd",)
    unused_columns: ClassVar[frozenset[str]] = frozenset()

    def preload(self, task: Task) -> None:
        """Import slow packages that such a task needs. Called in the process that forks workers."""

    # --- rows -------------------------------------------------------------------------------------------------------

    def recognises(self, row: Mapping[str, Any]) -> bool:
        """Whether the row is of this kind."""
        return self.identifying_columns <= row.keys()

    def reason_ungradable(self, row: Mapping[str, Any]) -> str:
        """Why the row cannot be graded; "" where it can. A text column holds only whether it is filled."""
        if not self.image(row):
            return "it names no image"
        if not parse_test_ids(row.get("FAIL_TO_PASS")):
            return "its FAIL_TO_PASS is empty"
        return "" if text(row.get("test_cmd")) else "its test_cmd is empty"

    def task_id(self, row: Mapping[str, Any]) -> str:
        """The row's unique id."""
        return text(row.get("instance_id"))

    def image(self, row: Mapping[str, Any]) -> str:
        """The name of the row's image."""
        return text(row.get("image_name"))

    def tests(self, row: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The tests that must turn from failing to passing, and those that must stay passing. Raises ValueError."""
        fail_to_pass, pass_to_pass = (_test_ids(row, name) for name in ("FAIL_TO_PASS", "PASS_TO_PASS"))
        return fail_to_pass, pass_to_pass

    def task(self, row: Mapping[str, Any]) -> Task:
        """What of the row goes to the worker."""
        fail_to_pass, pass_to_pass = self.tests(row)
        return Task(
            task_id=self.task_id(row),
            dataset=self.name,
            image_name=self.image(row),
            problem_statement=text(row.get("problem_statement")),
            fail_to_pass=fail_to_pass,
            pass_to_pass=pass_to_pass,
            row={name: text(row.get(name)) for name in self.task_columns},
        )

    # --- the repository ---------------------------------------------------------------------------------------------

    def set_up(self, task: Task, sandbox: Sandbox) -> None:
        """Change the image's repository to the state in which the agent starts. Raises GraderError where row and image
        do not fit."""

    def check_base(self, task: Task, sandbox: Sandbox) -> None:
        """Raises GraderError where the row's tests do not fit the repository as it is before a submission: what fails
        then is the row's fault. Called in the grading sandbox after `set_up`; must not change the repository."""

    def base_commit(self, task: Task) -> str:
        """A commit that the agent can still name; "" where the row has none."""
        return text(task.row.get("base_commit"))

    def hidden_paths(self, task: Task) -> tuple[str, ...]:
        """Paths, absolute or in the repository, that grading needs and the agent must not see."""
        return ()

    def test_files(self, task: Task) -> tuple[str, ...]:
        """Files in the repository that hold the row's tests. Under every policy the tests run with the image's version
        of them, whatever the submission changes."""
        return files_of_tests((*task.fail_to_pass, *task.pass_to_pass))

    def apply_gold(self, row: Mapping[str, Any], task: Task, sandbox: Sandbox) -> None:
        """Solve the row in the agent's repository. Raises GraderError."""
        if not (patch := text(row.get("patch"))):
            raise GraderError(
                f"row {task.task_id} has no gold patch in its column `patch`, so whether it can be solved is unknown;"
                " fill the column or override `apply_gold`"
            )
        sandbox.write_file(GOLD_PATCH, patch)
        run_checked(sandbox, task, f"git apply {GOLD_PATCH} && rm {GOLD_PATCH}", cwd=REPOSITORY)

    # --- the tests --------------------------------------------------------------------------------------------------

    def script_of_tests(self, task: Task) -> str:
        """The part of the script that runs the tests. The test files that it names are protected."""
        return self.test_script(task)

    def test_script(self, task: Task) -> str:
        """The bash script that runs the tests, in the repository with the submission applied."""
        return task.row["test_cmd"]

    def test_names(self, task: Task, tests: Sequence[ReportedTest]) -> list[tuple[str, ...]]:
        """For each test the ids by which the row may name it, the surest first: with the repository as base, then as
        the runner prints it and knows it. A later id counts where it is the first id of no other test."""
        return [test.ids for test in tests]

    def outcomes(self, task: Task, run: TestRun) -> dict[str, str]:
        """Outcome by the id that the row uses, from the report of the runners: the submission's code can print
        anything. Empty where the report is not whole."""
        if not run.report.is_whole:
            return {}
        return rules.outcomes_by_name(run.report.tests, self.test_names(task, run.report.tests))

    def canary_tests(self, task: Task, passed: Sequence[ReportedTest]) -> list[ReportedTest]:
        """Those of the passed tests that a canary run repeats: the row's FAIL_TO_PASS tests."""
        return [passed[position] for position in rules.select_named(self.test_names(task, passed), task.fail_to_pass)]

    def trusts_printed_output(self, task: Task) -> bool:
        """Whether outcomes are read from what the tests print. Code under test can print too, so a submission can
        forge its grade there: only for runners that the reporter does not know, and by the dataset author's choice."""
        return False

    def resolved(self, task: Task, outcomes: Mapping[str, str]) -> bool:
        """Whether the outcomes resolve the row: by default SWE-bench's rule, outcomes.resolved."""
        return rules.resolved(outcomes, task.fail_to_pass, task.pass_to_pass)


def text(value: Any) -> str:
    """A column's text; "" for None and NaN, which parquet and pandas use for missing values."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return str(value)


def named_image(row: Mapping[str, Any]) -> str:
    """The image that the row names; "" for none."""
    return next((name for column in IMAGE_COLUMNS if (name := text(row.get(column)))), "")


def parse_test_ids(value: Any) -> tuple[str, ...]:
    """A column of test ids: a list, its JSON text, or empty in any spelling. Half surrogates are replaced.

    Raises ValueError for other values.
    """
    if isinstance(value, str):
        value = json.loads(value) if value.strip() else None
    if value is None or value != value:  # pandas writes NaN for a missing list
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(test, str) for test in value):
        raise ValueError(f"{value!r:.80} is no list of texts")
    return tuple(map(whole_characters, value))


def _test_ids(row: Mapping[str, Any], column: str) -> tuple[str, ...]:
    try:
        return parse_test_ids(row.get(column))
    except ValueError as invalid:
        raise ValueError(f"its {column} is no list of tests: {invalid}") from invalid


def files_of_tests(tests: Iterable[str]) -> tuple[str, ...]:
    """The files in pytest's ids: the part before `::`. The file of a docstring's doctest is the code that it documents,
    no file of tests."""
    return tuple(sorted({test.split("::")[0] for test in tests if "::" in test and not is_doctest(test)}))


def is_doctest(test: str) -> bool:
    """Whether pytest's id is that of a docstring's doctest: `pkg/mod.py::pkg.mod.function`. A test function may have
    the name of its file, so a name without a dot is taken for one."""
    file, _, name = test.partition("::")
    if not file.endswith(".py") or "::" in name or "." not in name.partition("[")[0]:
        return False
    parts = file.removesuffix(".py").removesuffix("/__init__").split("/")
    modules = (".".join(parts[start:]) for start in range(len(parts)))
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def run_checked(sandbox: Sandbox, task: Task, command: str, *, cwd: str) -> str:
    """The standard output of a command that fails only where row and image do not fit. It is one of the server's own:
    see Sandbox.run_clean. Raises GraderError."""
    result = sandbox.run_clean(command, cwd=cwd, timeout_s=SETUP_TIMEOUT_S)
    if result.returncode != 0:
        raise GraderError(
            f"row {task.task_id}: its image and its columns do not fit (`{command[:80]}`): {result.message}"
        )
    return result.output
