"""SWE-smith rows: a patch per row that adds a bug to the image's repository.

Rows may bring a test command of their own (`test_cmd`); for the others it comes from the official package's profile of
the repository.
Invariant: the agent sees the repository with the bug and without the tests that show it, and no history of either.
"""

import shlex
import sys
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

from agent_server.grading.datasets.base import (
    GRADING_COLUMNS,
    REPOSITORY,
    Dataset,
    TestRun,
    files_of_tests,
    parse_test_ids,
    run_checked,
    text,
)
from agent_server.grading.patches import paths_in
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task

BUG = "/tmp/.bug.patch"
DOCKERFILES = "swebench.harness.dockerfiles"
# Names that swesmith 0.0.9 imports and swebench 5 no longer has. Its profiles and parsers do without them.
REMOVED_NAMES = {"DOCKER_USER": "root", "DOCKER_WORKDIR": "/testbed", "KEY_INSTANCE_ID": "instance_id"}


class SweSmith(Dataset):
    name = "swesmith"
    identifying_columns = frozenset({"instance_id", "image_name", "patch", "FAIL_TO_PASS", "PASS_TO_PASS"})
    read_columns = ("instance_id", "image_name", "test_cmd", "repo")
    text_columns = ("problem_statement", "patch")
    task_columns = ("test_cmd", "patch", "repo")
    unused_columns = GRADING_COLUMNS - {"test_cmd"}

    def recognises(self, row: Mapping[str, Any]) -> bool:
        return super().recognises(row) and not row.get("base_commit")

    def reason_ungradable(self, row: Mapping[str, Any]) -> str:
        if not self.image(row):
            return "it names no image"
        if not parse_test_ids(row.get("FAIL_TO_PASS")):
            return "its FAIL_TO_PASS is empty"
        if not row.get("patch"):
            return "its patch, which makes the bug, is empty"
        if not text(row.get("test_cmd")) and _profile_name(row) not in _registry().data:
            return f"it has no test_cmd, and swesmith has no profile of {_profile_name(row)!r}"
        return ""

    def apply_gold(self, row: Mapping[str, Any], task: Task, sandbox: Sandbox) -> None:
        """Undo the bug."""
        sandbox.write_file(BUG, task.row["patch"])
        run_checked(sandbox, task, f"git apply -R {BUG} && rm {BUG}", cwd=REPOSITORY)

    def preload(self, task: Task) -> None:
        if not task.row["test_cmd"]:
            _registry()

    def set_up(self, task: Task, sandbox: Sandbox) -> None:
        sandbox.write_file(BUG, task.row["patch"])
        run_checked(sandbox, task, f"git apply {BUG} && rm {BUG}", cwd=REPOSITORY)

    def hidden_paths(self, task: Task) -> tuple[str, ...]:
        """The files of the failing tests, as SWE-smith's own branches leave them out."""
        return self._without_source(task, files_of_tests(task.fail_to_pass))

    def test_files(self, task: Task) -> tuple[str, ...]:
        return self._without_source(task, super().test_files(task))

    def _without_source(self, task: Task, files: tuple[str, ...]) -> tuple[str, ...]:
        """Without the files in which the bug is: the agent must see and change them, whatever tests they hold."""
        return tuple(file for file in files if file not in paths_in(task.row.get("patch", "")))

    def test_script(self, task: Task) -> str:
        if task.row["test_cmd"]:
            return task.row["test_cmd"]
        files = {test.split("::")[0] for test in (*task.fail_to_pass, *task.pass_to_pass) if "::" in test}
        return f"{_registry().get(_profile_name(_as_row(task))).test_cmd} {shlex.join(sorted(files))}"

    def trusts_printed_output(self, task: Task) -> bool:
        """The official profile's parser, for repositories in other languages than Python."""
        if task.row["test_cmd"]:
            return False
        profile = _registry().get(_profile_name(_as_row(task)))
        return not any(kind.__name__ == "PythonProfile" for kind in type(profile).__mro__)

    def outcomes(self, task: Task, run: TestRun) -> dict[str, str]:
        """As the runners reported them; as printed where the profile's runner is none of those."""
        if self.trusts_printed_output(task):
            return _registry().get(_profile_name(_as_row(task))).log_parser(run.log)
        return super().outcomes(task, run)


def _profile_name(row: Mapping[str, Any]) -> str:
    """swesmith's key of a row's repository: `OWNER__NAME.COMMIT`, in `repo` after the organisation, or in the id."""
    return text(row.get("repo")) or text(row.get("instance_id")).rsplit(".", 1)[0]


def _as_row(task: Task) -> dict[str, str]:
    return {"repo": task.row["repo"], "instance_id": task.task_id}


@cache
def _registry() -> Any:
    """swesmith's profiles by repository. swebench 5 lacks names and a module that swesmith imports; they are added
    here."""
    import swebench.harness.constants as constants

    for name, value in REMOVED_NAMES.items():
        if not hasattr(constants, name):
            setattr(constants, name, value)
    if DOCKERFILES not in sys.modules:
        module = ModuleType(DOCKERFILES)
        module.__dict__["get_dockerfile_env"] = None
        sys.modules[DOCKERFILES] = module
    from swesmith.profiles import registry

    return registry
