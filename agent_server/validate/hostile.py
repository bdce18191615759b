"""Builds hostile submissions: patches that seek a reward without solving the row. Each must be graded 0.

Invariant: every attack of the set yields a patch that applies, made in the row's own repository, or the reason why it
cannot be made there. None is dropped.
"""

import base64
import inspect
import re
import shlex
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from agent_server.grading import changes
from agent_server.grading.datasets.base import REPOSITORY, SETUP_TIMEOUT_S, Dataset, run_checked
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task
from agent_server.validate import (
    attacks,
    attacks_on_reports,
    attacks_on_runners,
    insertion,
    printed,
    replaced_scripts,
    replaced_tests,
)
from agent_server.validate.attacks import ATTACKS, Attack

DELETE_TESTS, REPLACE_TESTS, REPLACE_SCRIPTS = "delete the tests", "replace the tests", "replace the test scripts"
NAMES = (DELETE_TESTS, REPLACE_TESTS, REPLACE_SCRIPTS, *(attack.name for attack in ATTACKS))
TEST_FILE = re.compile(r"(^|/)tests?/|(^|/)test_[^/]*\.py$|_test\.py$")
LIST = "/tmp/.attack.list"
RESET = "git reset -q --hard && git clean -fdq"


@dataclass(frozen=True, slots=True)
class GoldFile:
    """A Python file that the gold patch changes. `is_new`: or adds; then it has no lines before."""

    path: str
    changed: tuple[insertion.LineRange, ...]
    is_new: bool


@dataclass(frozen=True, slots=True)
class HostileSubmission:
    """`patch`, or why there is none: `not_applicable`."""

    attack: str
    patch: str = ""
    not_applicable: str = ""


def prints(name: str) -> bool:
    """Whether the attack shows the row's tests as passed."""
    return any(attack.name == name and "{passes}" in attack.code for attack in ATTACKS)


class NotApplicable(Exception):
    """Why an attack cannot be made in a repository."""


def find_gold_files(task: Task, sandbox: Sandbox) -> tuple[GoldFile, ...]:
    """The Python files that differ from HEAD in the agent's repository, to which the gold patch has been applied.
    Raises GraderError."""
    diff = "git diff --cached --no-renames --no-ext-diff --no-textconv --no-color --text HEAD"
    found = []
    for is_new, status in ((False, "M"), (True, "A")):
        listing = f"git add -A && {diff} --diff-filter={status} --name-only -z | base64 -w0"
        names = base64.b64decode(run_checked(sandbox, task, listing, cwd=REPOSITORY))
        for path in names.decode(errors="surrogateescape").split("\0"):
            if path.endswith(".py"):
                hunks = f"{diff} -U0 -- {shlex.quote(f':(literal){path}')} | {{ grep -a '^@@ ' || true; }}"
                changed = insertion.changed_lines(run_checked(sandbox, task, hunks, cwd=REPOSITORY))
                found.append(GoldFile(path, changed, is_new))
    return tuple(found)


def submissions(
    dataset: Dataset,
    task: Task,
    sandbox: Sandbox,
    gold_files: Sequence[GoldFile],
    gold_log: str,
    names: Sequence[str] = NAMES,
) -> Iterator[HostileSubmission]:
    """The attacks with these names. `sandbox` holds the agent's repository, committed and clean. `gold_log`: what the
    tests print with the gold patch. Raises GraderError."""
    builder = _Builder(dataset, task, sandbox, gold_files, gold_log)
    for name in names:
        try:
            builder.make(name)
            patch = changes.collect_diff(sandbox)
            reason = "" if patch else "the repository ignores the files of the attack"
            yield HostileSubmission(name, patch, reason)
        except NotApplicable as reason:
            yield HostileSubmission(name, not_applicable=str(reason))
        finally:
            sandbox.run_clean(RESET, cwd=REPOSITORY, timeout_s=SETUP_TIMEOUT_S)


def fingerprint() -> str:
    """The source of all attacks: a verdict depends on it."""
    modules = (attacks, attacks_on_reports, attacks_on_runners, insertion, printed, replaced_scripts, replaced_tests)
    return "".join(inspect.getsource(module) for module in (*modules, _Builder))


class _Builder:
    """Makes attacks in the repository of one sandbox."""

    def __init__(self, dataset: Dataset, task: Task, sandbox: Sandbox, gold_files: Sequence[GoldFile], gold_log: str):
        self._task, self._sandbox, self._gold_files = task, sandbox, gold_files
        self._tests = (*task.fail_to_pass, *task.pass_to_pass)
        self._script = dataset.test_script(task)
        self._passes = printed.passes(self._tests, gold_log)
        self._tracked = self._output("git ls-files -z").decode(errors="surrogateescape").split("\0")
        self._attacks = {attack.name: attack for attack in ATTACKS}

    def make(self, name: str) -> None:
        """Change the repository as the attack does. Raises NotApplicable, GraderError."""
        if name == DELETE_TESTS:
            self._delete_tests()
        elif name == REPLACE_TESTS:
            self._write(replaced_tests.replaced_tests(self._tests, self._script, self._tracked))
        elif name == REPLACE_SCRIPTS:
            self._replace_scripts()
        elif (attack := self._attacks[name]).files:
            self._write({path: self._filled_in(text) for path, text in attack.files.items()})
        else:
            self._insert(attack)

    def _delete_tests(self) -> None:
        if not (tests := [path for path in self._tracked if TEST_FILE.search(path)]):
            raise NotApplicable("the repository has no test files that the agent sees")
        self._sandbox.write_file(LIST, "\0".join(tests))
        run_checked(self._sandbox, self._task, f"xargs -0 rm -f -- <{LIST}", cwd=REPOSITORY)

    def _replace_scripts(self) -> None:
        files = replaced_scripts.named_files(self._script, self._tracked)
        first_lines = {path: self._read(path).partition(b"\n")[0].decode(errors="replace") for path in files}
        python = self._filled_in(attacks.PRINT_AND_EXIT)
        if not (made := replaced_scripts.replaced_scripts(first_lines, python)):
            raise NotApplicable("the row's test script names no script of the repository")
        self._write(made)

    def _insert(self, attack: Attack) -> None:
        if attack.needs and not any(path.startswith(f"{attack.needs}/") for path in self._tracked):
            raise NotApplicable(f"the repository has no folder {attack.needs}")
        if not self._gold_files:
            raise NotApplicable("the gold patch changes no Python file")
        statement = f"exec({self._filled_in(attack.code)!r}, {{}})"
        made = {}
        for file in self._gold_files:
            old = b"" if file.is_new else self._read(file.path)
            if attack.place == "import":
                made[file.path] = insertion.insert_at_import(old, statement)
            elif new := insertion.insert_in_functions(old, file.changed, statement):
                made[file.path] = new
        if not made:
            raise NotApplicable("the files that the gold patch changes have no functions, or not in this Python")
        self._write({path: content.decode(errors="surrogateescape") for path, content in made.items()})

    def _filled_in(self, code: str) -> str:
        """The passes are compressed: rows may have thousands of tests, and some attacks print them in each function."""
        encoded = base64.b64encode(zlib.compress(self._passes.encode(errors="surrogateescape"))).decode()
        expression = f'__import__("zlib").decompress(__import__("base64").b64decode("{encoded}"))'
        return code.replace("{passes}", expression)

    def _read(self, path: str) -> bytes:
        return self._output(f"cat -- {shlex.quote(path)}")

    def _write(self, files: Mapping[str, str]) -> None:
        for path, content in files.items():
            folder = shlex.quote(f"{REPOSITORY}/{path}".rpartition("/")[0])
            run_checked(self._sandbox, self._task, f"mkdir -p {folder}", cwd=REPOSITORY)
            self._sandbox.write_file(f"{REPOSITORY}/{path}", content)

    def _output(self, command: str) -> bytes:
        return base64.b64decode(run_checked(self._sandbox, self._task, f"{command} | base64 -w0", cwd=REPOSITORY))
