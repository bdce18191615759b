"""The seam between a dataset's rows and grading: what its images, tests and words for an outcome are.

Subclass Dataset for a dataset of your own; docs/datasets.md, "Bring your own dataset", shows how.
Invariant: an instance has no state. Everything about a row is in its Task, everything about a run in its TestRun.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from agent_server.grading import outcomes as words
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task
from client.errors import GraderError

REPOSITORY = "/testbed"  # in every image, or made so by `set_up`
SETUP_TIMEOUT_S = 300.0
FIX = "/tmp/.fix.patch"
UNITTEST_ID = re.compile(r"\w+ \([\w.]+\)$")


@dataclass(frozen=True, slots=True)
class TestRun:
    """What a row's tests left: all they printed, how their script ended, and outcomes by test id as the runner itself reported
    them: pytest (None where it wrote no report) or unittest, whose ids are `test_x (pkg.Class)`."""

    log: str
    returncode: int
    pytest_outcomes: dict[str, str] | None = None
    unittest_outcomes: dict[str, str] = field(default_factory=dict)


class Dataset:
    """Rows with `image_name`, FAIL_TO_PASS, PASS_TO_PASS and a `test_cmd` that runs pytest. Subclasses say what is different."""

    name: ClassVar[str] = ""
    identifying_columns: ClassVar[frozenset[str]] = frozenset()  # a row that has all of these is of this kind
    read_columns: ClassVar[tuple[str, ...]] = (
        "instance_id",
        "image_name",
        "FAIL_TO_PASS",
        "test_cmd",
    )  # read of every row at the start
    text_columns: ClassVar[tuple[str, ...]] = ("problem_statement",)  # large: at the start only whether they are there
    task_columns: ClassVar[tuple[str, ...]] = ("test_cmd",)  # go with the task

    def preload(self, task: Task) -> None:
        """Import what takes long and such a task needs, in the process that forks workers."""

    # --- rows -------------------------------------------------------------------------------------------------------

    def recognises(self, row: Mapping[str, Any]) -> bool:
        """Whether rows like this one are of this kind."""
        return self.identifying_columns <= row.keys()

    def reason_ungradable(self, row: Mapping[str, Any]) -> str:
        """Why the row cannot be graded; "" where it can. Of `texts` the row holds only whether they are there."""
        if not self.image(row):
            return "it names no image"
        if not parse_test_ids(row.get("FAIL_TO_PASS")):
            return "its FAIL_TO_PASS is empty"
        return "" if text(row.get("test_cmd")) else "its test_cmd is empty"

    def task_id(self, row: Mapping[str, Any]) -> str:
        return text(row.get("instance_id"))

    def image(self, row: Mapping[str, Any]) -> str:
        return text(row.get("image_name"))

    def task(self, row: Mapping[str, Any]) -> Task:
        return Task(
            task_id=self.task_id(row),
            dataset=self.name,
            image_name=self.image(row),
            problem_statement=text(row.get("problem_statement")),
            fail_to_pass=parse_test_ids(row.get("FAIL_TO_PASS")),
            pass_to_pass=parse_test_ids(row.get("PASS_TO_PASS")),
            row={name: text(row.get(name)) for name in self.task_columns},
        )

    # --- the repository ---------------------------------------------------------------------------------------------

    def set_up(self, task: Task, sandbox: Sandbox) -> None:
        """Bring the image's repository to where the agent starts. Raises GraderError where row and image do not fit."""

    def base_commit(self, task: Task) -> str:
        """A commit that the agent can still name; "" where the row has none."""
        return text(task.row.get("base_commit"))

    def hidden_paths(self, task: Task) -> tuple[str, ...]:
        """Paths, absolute or in the repository, that the agent must not see and grading needs."""
        return ()

    def test_files(self, task: Task) -> tuple[str, ...]:
        """Files in the repository that hold the row's tests: as in the image when they run, whatever the submission says."""
        return files_of_tests((*task.fail_to_pass, *task.pass_to_pass))

    def apply_gold(self, row: Mapping[str, Any], task: Task, sandbox: Sandbox) -> None:
        """Resolve the row in the agent's repository, as only its author can. Raises GraderError."""
        if not (patch := text(row.get("patch"))):
            raise GraderError(
                f"row {task.task_id} has no gold patch in its column `patch`, so golden cannot tell whether it can be solved"
            )
        sandbox.write_file(FIX, patch)
        run_checked(sandbox, task, f"git apply {FIX} && rm {FIX}", cwd=REPOSITORY)

    # --- the tests --------------------------------------------------------------------------------------------------

    def test_script(self, task: Task) -> str:
        """What bash runs in the repository, the submission applied, to run the tests."""
        return task.row["test_cmd"]

    def outcomes(self, task: Task, run: TestRun) -> dict[str, str]:
        """Each test's outcome by the id that the row uses, from the runner's own report: what is merely printed, the submission's
        code can print too."""
        return run.unittest_outcomes if run.pytest_outcomes is None else run.pytest_outcomes

    def resolved(self, task: Task, outcomes: Mapping[str, str]) -> bool:
        """Whether every test that should pass now, and every one that passed before, has passed: see outcomes.resolved."""
        return words.resolved(outcomes, task.fail_to_pass, task.pass_to_pass)


def text(value: Any) -> str:
    """A column's text; "" for None and NaN, which parquet and pandas use for what is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return str(value)


def parse_test_ids(value: Any) -> tuple[str, ...]:
    """A column of test ids: a list, its JSON text, or nothing in any spelling. Raises ValueError for other text."""
    if isinstance(value, str):
        value = json.loads(value) if value.strip() else ()
    elif isinstance(value, float):
        value = ()
    return tuple(map(str, value if value is not None else ()))


def files_of_tests(tests: Iterable[str]) -> tuple[str, ...]:
    """The files in pytest's ids, the part before `::`."""
    return tuple(sorted({test.split("::")[0] for test in tests if "::" in test}))


def runs_pytest(script: str) -> bool:
    return "pytest" in script or "py.test" in script


def confirmed_by_runner(found: Mapping[str, str], tests: Iterable[str], script: str, run: TestRun) -> dict[str, str]:
    """Outcomes that were read from what was printed, without passes that the runner itself does not know of: pytest where `script`
    runs it, unittest where the ids of `tests` are unittest's. Where a test has a docstring, its id in SWE-bench is that; it can only
    be asked then whether any test ran."""
    if runs_pytest(script):
        return {
            test: outcome
            for test, outcome in found.items()
            if outcome != "PASSED" or _reported_passed(test, run.pytest_outcomes or {})
        }
    if not any(UNITTEST_ID.match(test) for test in tests):
        return dict(found)
    if not run.unittest_outcomes:
        return {}
    seen = {
        test: run.unittest_outcomes.get(words.short_unittest_id(test), words.MISSING)
        for test in found
        if UNITTEST_ID.match(test)
    }
    return {
        test: outcome for test, outcome in found.items() if outcome != "PASSED" or seen.get(test, "PASSED") == "PASSED"
    }


def _reported_passed(test: str, report: Mapping[str, str]) -> bool:
    """swebench's parsers cut ids short at a space; then all that begin so must have passed."""
    whole = (
        [test]
        if test in report or test.count("[") == test.count("]")
        else [name for name in report if name.startswith(test)]
    )
    return bool(whole) and all(report.get(name) == "PASSED" for name in whole)


def run_checked(sandbox: Sandbox, task: Task, command: str, *, cwd: str) -> str:
    """The output of a command that can only fail where row and image do not fit. Raises GraderError."""
    result = sandbox.run(command, cwd=cwd, timeout_s=SETUP_TIMEOUT_S)
    if result.returncode != 0:
        raise GraderError(
            f"row {task.task_id}: its image and its columns do not fit (`{command[:80]}`): {result.output[-500:]}"
        )
    return result.output
