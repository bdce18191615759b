"""What a submission may not change: the row's tests and everything that says how tests run.

Seen on the file system before and after the patch, not in the patch's text, which can be written in many ways.
Invariant: under `strip`, protected files are byte for byte those of the row before a test runs; what was found is reported.
"""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from agent_server.grading.dataset import REPOSITORY, Dataset, must
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task

Policy = Literal["strip", "reject", "allow"]
ANYWHERE = (
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml", "sitecustomize.py", "usercustomize.py", "*.pth",
    ".coveragerc", "noxfile.py", ".travis.yml", ".gitlab-ci.yml", "Jenkinsfile",
)  # fmt: skip
TEST_FOLDERS = ("tests", "test")
FOLDERS = (".github", ".circleci")
# Beside the tests, these would be imported instead of the test runner.
AT_THE_TOP = ("pytest.py", "pytest", "_pytest", "pluggy", "pluggy.py", "unittest.py", "unittest")
KEPT = "/tmp/.protected"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Digests of protected files by path; a symbolic link's is where it leads."""

    digests: dict[str, str]

    def changed(self, later: "Snapshot") -> tuple[str, ...]:
        paths = self.digests.keys() | later.digests.keys()
        return tuple(sorted(path for path in paths if self.digests.get(path) != later.digests.get(path)))


def snapshot(dataset: Dataset, task: Task, sandbox: Sandbox, *, keep: bool = False) -> Snapshot:
    """As it is now; `keep` also puts the files away for `restore`."""
    find = _find(dataset.test_files(task))
    script = f"{find} -print0 >{KEPT}.list; xargs -0 -r sha1sum -z -- <{KEPT}.list | tr '\\0' '\\n'; {find} -type l -printf '%l  %p\\n'"
    if keep:
        # With the folders that lead there: a link put in a folder's place must not lead the files elsewhere.
        script += f"; tar --no-recursion --null -cf {KEPT}.tar -T {KEPT}.list"
    output = must(sandbox, task, script, cwd=REPOSITORY)
    lines = (line.partition("  ") for line in output.splitlines())
    return Snapshot({path: digest for digest, _, path in lines if path})


def restore(dataset: Dataset, task: Task, sandbox: Sandbox, changed: Iterable[str]) -> None:
    """Bring these files back as they were kept, and remove those that were not there."""
    paths = " ".join(map(shlex.quote, changed))
    script = f"""
for path in {paths}; do
  folder=$path
  while folder=$(dirname "$folder") && [ "$folder" != . ] && [ "$folder" != / ]; do [ -L "$folder" ] && rm -f -- "$folder"; done
  rm -rf -- "$path"
done
for path in {paths}; do tar -xf {KEPT}.tar -- "$path" 2>/dev/null || true; done
"""
    must(sandbox, task, script, cwd=REPOSITORY)


def _of_test(file: str) -> Iterator[str]:
    """The test's file; where it lies in a folder of tests, all of that folder, since tests lean on what lies beside them."""
    parts = file.split("/")
    for number, part in enumerate(parts[:-1]):
        if part in TEST_FOLDERS:
            folder = "/".join(parts[: number + 1])
            yield from (f"./{folder}", f"./{folder}/*")
            return
    yield f"./{file}"


def _find(test_files: Iterable[str]) -> str:
    """A find command for all that is protected, files and links."""
    tests = [f"-path {shlex.quote(pattern)}" for file in test_files for pattern in _of_test(file)]
    names = [f"-name {shlex.quote(name)}" for name in ANYWHERE]
    folders = [f"-path './{folder}/*'" for folder in FOLDERS]
    top = [pattern for name in AT_THE_TOP for pattern in (f"-path ./{name}", f"-path './{name}/*'")]
    return f"find . -path ./.git -prune -o \\( {' -o '.join([*tests, *names, *folders, *top])} \\) \\( -type f -o -type l \\)"
