"""R2E-Gym rows: an image with the repository before the commit, its tests, and the expected outcome of each.

Invariant: R2E-Gym's own rule. The tests that ran are exactly the expected ones, and each had its expected outcome, a
failure included.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent_server.grading.datasets.base import GOLD_PATCH, GRADING_COLUMNS, REPOSITORY, Dataset, run_checked, text
from agent_server.grading.reporter.report import ReportedTest
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task

TESTS, SCRIPT = "r2e_tests", "run_tests.sh"
# Where images have them.
LOCATIONS = tuple(f"{folder}{name}" for folder in ("", "/", "/root/") for name in (TESTS, SCRIPT))
# Further files in images that reveal the commit and its tests. Grading has their content from the row.
REVEALING = (
    "parsed_commit.json", "modified_files.json", "modified_entities.json", "syn_issue.json",
    "expected_test_output.json", "execution_result.json",
)  # fmt: skip


COMPARED = ("PASSED", "FAILED", "ERROR")


class R2E(Dataset):
    name = "r2e"
    identifying_columns = frozenset({"docker_image", "problem_statement", "expected_output_json"})
    read_columns = ("docker_image", "commit_hash", "instance_id", "expected_output_json")
    text_columns = ("problem_statement",)
    task_columns = ("expected_output_json", "commit_hash")
    unused_columns = GRADING_COLUMNS - {"expected_output_json"}

    def reason_ungradable(self, row: Mapping[str, Any]) -> str:
        if not self.image(row):
            return "its docker_image is empty"
        if not self.task_id(row):
            return "it has neither an instance_id nor a commit_hash"
        try:
            expected = json.loads(text(row.get("expected_output_json")) or "{}")
        except ValueError:
            return "its expected_output_json is not JSON"
        if not isinstance(expected, dict) or "PASSED" not in expected.values():
            return "its expected_output_json has no test that should pass"
        return ""

    def task_id(self, row: Mapping[str, Any]) -> str:
        return text(row.get("instance_id")) or self.image(row)  # the image's tag is the commit

    def image(self, row: Mapping[str, Any]) -> str:
        return text(row.get("docker_image"))

    def task(self, row: Mapping[str, Any]) -> Task:
        expected = _shortened(json.loads(text(row.get("expected_output_json"))))
        passing = tuple(name for name, outcome in expected.items() if outcome == "PASSED")
        fields = super().task(row)
        return Task(fields.task_id, self.name, fields.image_name, fields.problem_statement, passing, (), fields.row)

    def apply_gold(self, row: Mapping[str, Any], task: Task, sandbox: Sandbox) -> None:
        """Apply the commit's own change, without its tests."""
        diffs = json.loads(text(row.get("parsed_commit_content")) or "{}").get("file_diffs", [])
        patch = "".join(_as_diff(diff) for diff in diffs if not _is_test(diff["header"]["file"]["path"]))
        sandbox.write_file(GOLD_PATCH, patch)
        run_checked(sandbox, task, f"git apply {GOLD_PATCH} && rm {GOLD_PATCH}", cwd=REPOSITORY)

    def set_up(self, task: Task, sandbox: Sandbox) -> None:
        """Remove what reveals the commit, also where grading runs: code under test can read it."""
        files = " ".join((*REVEALING, *(f"{folder}{name}" for folder in ("/", "/root/") for name in REVEALING)))
        remove = f"git rm -q --cached --ignore-unmatch -- {' '.join(REVEALING)}; rm -rf -- {files}"
        run_checked(sandbox, task, remove, cwd=REPOSITORY)

    def hidden_paths(self, task: Task) -> tuple[str, ...]:
        return LOCATIONS

    def test_files(self, task: Task) -> tuple[str, ...]:
        return ()  # all hidden

    def test_script(self, task: Task) -> str:
        """R2E-Gym's script, which runs `pytest -rA r2e_tests` in the repository, from wherever the image has the
        two."""
        link = (
            f"[ -e {TESTS} ] || for folder in / /root/; do"
            f" [ -e ${{folder}}{TESTS} ] && ln -s ${{folder}}{TESTS} {TESTS} && break; done"
        )
        run = f"for folder in ./ /root/ /; do [ -e ${{folder}}{SCRIPT} ] && exec bash ${{folder}}{SCRIPT}; done"
        return f"{link}\n{run}; echo 'no {SCRIPT}, so no pytest'; exit 127"

    def test_names(self, task: Task, tests: Sequence[ReportedTest]) -> list[tuple[str, ...]]:
        """In R2E-Gym's form, which names the test without its file."""
        return [(name,) if (name := _r2e_name(test.printed).split(" - ")[0]) else () for test in tests]

    def resolved(self, task: Task, outcomes: Mapping[str, str]) -> bool:
        """R2E-Gym compares the outcomes that its log parser knows; skipped and expected failures are not among them."""
        known = {test: outcome for test, outcome in outcomes.items() if outcome in COMPARED}
        return known == _shortened(json.loads(task.row["expected_output_json"]))


def _r2e_name(test: str) -> str:
    """R2E-Gym's name of a test: `TestX.test_y` for `r2e_tests/test_1.py::TestX::test_y`."""
    return ".".join(test.split("::")[1:])


def _shortened(outcomes: Mapping[str, str]) -> dict[str, str]:
    """Without what pytest adds to an id after ` - `, and without nameless entries, as R2E-Gym compares them."""
    return {short: outcome for name, outcome in sorted(outcomes.items()) if (short := name.split(" - ")[0])}


def _is_test(path: str) -> bool:
    return any(
        part in ("test", "tests") or part.startswith("test_") or part.endswith("_test.py") for part in path.split("/")
    )


def _as_diff(diff: Mapping[str, Any]) -> str:
    """One file of `parsed_commit_content` as a unified diff."""
    path = diff["header"]["file"]["path"]
    old, new = diff.get("old_file_content") or "", diff.get("new_file_content") or ""
    sides = (f"a/{path}" if old else "/dev/null", f"b/{path}" if new else "/dev/null")
    lines = difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), *sides)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
