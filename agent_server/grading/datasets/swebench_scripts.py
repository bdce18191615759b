"""Evaluation scripts for rows without one: older rows of SWE-bench and SWE-Gym, and datasets that name their commands.

Invariant: line by line what the official harness of the row's time ran, but for the lines that only print (`git
status`, `git show`, `git diff`), and the number of pip's retries: sandboxes have no network by default.
"""

import re
import shlex
from collections.abc import Iterable, Mapping

from agent_server.grading.datasets.base import REPOSITORY
from agent_server.grading.datasets.row_test_patch import apply_command
from agent_server.grading.datasets.swebench_specifications import PYTHON, Commands, specification
from agent_server.grading.patch_files import file_changes

# swebench's NON_TEST_EXTS, and its pattern for the names of files, which also finds them inside of hunks.
NOT_TESTS = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
DIRECTIVE = re.compile(r"diff --git a/.* b/(.*)")
MYPY_CASE = re.compile(r"\[case ([^\]]+)\]")
START_OUTPUT, END_OUTPUT = ">>>>> Start Test Output", ">>>>> End Test Output"
START, END = f": '{START_OUTPUT}'", f": '{END_OUTPUT}'"  # printed by `set -x`
ACTIVATE = ("source /opt/miniconda3/bin/activate", "conda activate testbed")
REPOSITORY_FOLDER = (f"git config --global --add safe.directory {REPOSITORY}", f"cd {REPOSITORY}")
UNKNOWN = Commands(test=("pytest -rA",))  # of repositories that no harness knows
# pip waits half a minute for each package that it cannot find without a network.
FEW_RETRIES = 'kept_retries=${PIP_RETRIES-}; export PIP_RETRIES="${PIP_RETRIES:-0}"'
OWN_RETRIES = '[ -n "$kept_retries" ] || unset PIP_RETRIES'


def reason_unknown(repository: str, version: str) -> str:
    """Why no script can be made for a row of these; "" where one can."""
    if (known := specification(repository)) is None or version in known.commands:
        return ""
    return f"it has no eval_script, and the harness knows no test command of {repository} {version!r}"


def eval_script(row: Mapping[str, str]) -> str:
    """The script for a row with `repo`, `version`, `base_commit` and `test_patch`."""
    known = specification(row["repo"])
    commands = known.commands[row["version"]] if known else UNKNOWN
    if known and known.language != PYTHON:
        return script_of_commands(row, commands)
    return python_script(row, commands)


def python_script(row: Mapping[str, str], commands: Commands) -> str:
    """The script of Python's rows: the one test command runs on the files of the test patch."""
    install = [FEW_RETRIES, commands.install, OWN_RETRIES] if commands.install else []
    before = [*ACTIVATE, f"cd {REPOSITORY}", *commands.setup, *REPOSITORY_FOLDER, *ACTIVATE, *install]
    # Without files it takes the whole repository to its base.
    restore = f"git checkout {row['base_commit']} {shlex.join(_old_files(row))}"
    return _script(row, before, restore, [_with_directives(commands.test[0], row)])


def script_of_commands(row: Mapping[str, str], commands: Commands) -> str:
    """The script of other languages' rows, whose test commands are complete."""
    files = _old_files(row)
    restore = f"git checkout {row['base_commit']} {shlex.join(files)}" if files else 'echo "No test files to reset"'
    return _script(row, [f"cd {REPOSITORY}", *REPOSITORY_FOLDER], restore, commands.test, commands.build)


def test_directives(repository: str, patch: str) -> list[str]:
    """The files of the test patch, as the harness gives them to the test command of a Python repository."""
    files = [file for file in DIRECTIVE.findall(patch) if not file.endswith(NOT_TESTS)]
    if repository.lower() != "django/django":
        return files
    return [file.removesuffix(".py").removeprefix("tests/").replace("/", ".") for file in files]


def _script(
    row: Mapping[str, str], before: Iterable[str], restore: str, tests: Iterable[str], build: Iterable[str] = ()
) -> str:
    return "\n".join([*before, restore, apply_command(row["test_patch"]), *build, START, *tests, END, restore])


def _old_files(row: Mapping[str, str]) -> list[str]:
    """The files of the test patch that are in the base."""
    return [change.old for change in file_changes(row["test_patch"]) if change.old]


def _with_directives(command: str, row: Mapping[str, str]) -> str:
    if row["repo"].lower() == "python/mypy":  # its tests are cases in data files, selected by name
        return f'{command} "{" or ".join(MYPY_CASE.findall(row["test_patch"]))}"'
    return " ".join([command, *map(shlex.quote, test_directives(row["repo"], row["test_patch"]))])
