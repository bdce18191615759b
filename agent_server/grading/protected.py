"""What a submission may not change: the row's tests and everything that says how tests run.

Seen on the file system before and after the patch, not in the patch's text, which can be written in many ways.
Invariant: under `strip`, protected files are byte for byte those of the row before a test runs; what was found is reported.
Names are bytes on the way, as a name may hold anything but NUL.
"""

import base64
import binascii
import gzip
import re
import shlex
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from agent_server.grading.datasets.base import REPOSITORY, Dataset, run_checked
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task
from client.errors import GraderError

Policy = Literal["strip", "reject", "allow"]
ANYWHERE = (
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml", "sitecustomize.py", "usercustomize.py",
    "*.pth", "entry_points.txt", ".gitattributes", ".coveragerc", "noxfile.py", ".travis.yml", ".gitlab-ci.yml", "Jenkinsfile",
)  # fmt: skip
COMPILED = ".pyc"  # Python can be told to believe these without a look at the source; no fix needs one, so under no policy do they count
TEST_FOLDERS = ("tests", "test")
FOLDERS = (".github", ".circleci")
# Beside the tests, these would be imported instead of the test runner.
AT_THE_TOP = ("pytest", "_pytest", "pluggy", "unittest")
KEPT = "/tmp/.protected"
# Words of a script that name tests or how they run, without what here-documents hold.
HERE_DOCUMENT = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n.*?^\s*\2$", re.MULTILINE | re.DOTALL)
WORD = re.compile(r"[^\s'\"`;|&()<>=]+")
NAMES_TESTS = re.compile(r"(?:^|[/_.-])tests?(?:[/_.-]|$)|\.sh$", re.IGNORECASE)
MAKEFILES = ("Makefile", "makefile", "GNUmakefile")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What each protected file is, by path: kind, mode and digest, or where a link leads."""

    facts: dict[str, str]

    def changed(self, later: "Snapshot") -> tuple[str, ...]:
        paths = self.facts.keys() | later.facts.keys()
        return tuple(sorted(path for path in paths if self.facts.get(path) != later.facts.get(path)))


def snapshot(dataset: Dataset, task: Task, sandbox: Sandbox, *, keep: bool = False) -> Snapshot:
    """As it is now; `keep` also puts the files away for `restore`. Raises GraderError."""
    find = _find(_tests(dataset, task))
    # Links are not followed: one may lead to what never ends. sha1sum's records come last, after an empty one.
    script = f"{{ {find} -printf '%p\\0%y%m %l\\0'; printf '\\0'; {find} -type f -print0 | xargs -0 -r sha1sum -z --; }} 2>/dev/null | gzip -c | base64 -w0"
    if keep:
        script += (
            f"; {find} -print0 >{KEPT}.list && tar --no-recursion --null --no-unquote -cf {KEPT}.tar -T {KEPT}.list"
        )
    try:
        records = (
            gzip.decompress(base64.b64decode(run_checked(sandbox, task, script, cwd=REPOSITORY)))
            .decode(errors="surrogateescape")
            .split("\0")
        )
    except (OSError, EOFError, zlib.error, binascii.Error) as torn:
        raise GraderError(
            f"row {task.task_id}: what is protected cannot be listed, are find, sha1sum, gzip and base64 in its image? {torn}"
        ) from torn
    end = next((number for number in range(0, len(records), 2) if not records[number]), len(records))
    facts = dict(zip(records[:end:2], records[1:end:2], strict=True))
    for record in records[end + 1 :]:
        digest, _, path = record.partition("  ")
        if path:
            facts[path] = f"{facts.get(path, '')}{digest}"
    return Snapshot(facts)


def restore(task: Task, sandbox: Sandbox, before: Snapshot, changed: Iterable[str]) -> None:
    """Bring these files back as they were kept, and remove those that were not there. Raises GraderError."""
    paths = list(changed)
    folders = sorted({folder for path in paths for folder in _folders(path)}, key=len)
    for name, listed in {
        "folders": folders,
        "changed": paths,
        "back": [path for path in paths if path in before.facts],
    }.items():
        sandbox.write_file(f"{KEPT}.{name}", "".join(f"{path}\0" for path in listed))
    # What stands in a folder's place must not lead the files elsewhere, or keep them away.
    script = f"""
while IFS= read -rd '' folder; do if [ -L "$folder" ] || [ ! -d "$folder" ]; then rm -rf -- "$folder"; fi; done <{KEPT}.folders
xargs -0 -r rm -rf -- <{KEPT}.changed && tar --null --no-unquote -xf {KEPT}.tar -T {KEPT}.back
"""
    run_checked(sandbox, task, script, cwd=REPOSITORY)


def remove(task: Task, sandbox: Sandbox, paths: Iterable[str]) -> None:
    """Raises GraderError."""
    sandbox.write_file(f"{KEPT}.changed", "".join(f"{path}\0" for path in paths))
    run_checked(sandbox, task, f"xargs -0 -r rm -rf -- <{KEPT}.changed", cwd=REPOSITORY)


def installed(task: Task, sandbox: Sandbox) -> str:
    """What has changed since the kept snapshot of packages that are installed in the repository's folder: too much to put away. Raises
    GraderError."""
    return run_checked(
        sandbox,
        task,
        f"find . -path ./.git -prune -o \\( -path '*/site-packages/*' -o -path './.venv/*' -o -path './venv/*' \\) -cnewer {KEPT}.list -print | head -n 5",
        cwd=REPOSITORY,
    )


def counting(changed: Iterable[str]) -> tuple[str, ...]:
    """Those that are a reason to reject, as text that can be recorded."""
    return tuple(
        path.encode(errors="surrogateescape").decode(errors="replace")
        for path in changed
        if not path.endswith(COMPILED)
    )


def always_restored(dataset: Dataset, task: Task, changed: Iterable[str]) -> list[str]:
    """Those that are the row's own tests, or stand in their way, and what is compiled."""
    tests = [f"./{file}" for file in _tests(dataset, task)]
    return [
        path
        for path in changed
        if path.endswith(COMPILED)
        or any(f"{test}/".startswith(f"{path}/") or path.startswith(f"{test}/") for test in tests)
    ]


def named_in(script: str) -> Iterator[str]:
    """Paths in the repository that a script's words name and that hold tests or say how they run."""
    words = [word.split("::")[0] for word in WORD.findall(HERE_DOCUMENT.sub("", script))]
    for word in words:
        path = re.sub(rf"^(?:{REPOSITORY}/|(?:\./)+)", "", word).rstrip("/")
        if path and NAMES_TESTS.search(path) and not path.startswith(("-", "/", ".")) and "$" not in path:
            yield path
    if "make" in words:
        yield from MAKEFILES


def _tests(dataset: Dataset, task: Task) -> list[str]:
    return [*dataset.test_files(task), *named_in(dataset.test_script(task))]


def _folders(path: str) -> Iterator[str]:
    """`./a`, `./a/b` of `./a/b/c`."""
    for number, character in enumerate(path):
        if character == "/" and number > 1:
            yield path[:number]


def _of_test(file: str) -> Iterator[str]:
    """The test's file; where it lies in a folder of tests, all of that folder, since tests lean on what lies beside them. And what
    would stand in its way: a folder in its place, a file in the place of its folder."""
    parts = file.split("/")
    last = next((number for number, part in enumerate(parts[:-1]) if part in TEST_FOLDERS), len(parts) - 1)
    whole = "./" + "/".join(parts[: last + 1])
    yield from (*_folders(whole), whole, f"{whole}/*")


def _find(test_files: Iterable[str]) -> str:
    """A find command for all that is protected, of any kind but folders."""
    patterns = {pattern for file in test_files for pattern in _of_test(re.sub(r"([*?\[\\])", r"\\\1", file))}
    tests = [f"-path {shlex.quote(pattern)}" for pattern in sorted(patterns)]
    names = [f"-name {shlex.quote(name)}" for name in ANYWHERE] + [f"-name '*{COMPILED}' ! -path '*/site-packages/*'"]
    folders = [f"-path './{folder}/*'" for folder in FOLDERS]
    top = [
        f"-path {shlex.quote(pattern)}"
        for name in AT_THE_TOP
        for pattern in (f"./{name}", f"./{name}/*", f"./{name}.*")
    ]
    return f"find . -path ./.git -prune -o \\( {' -o '.join([*tests, *names, *folders, *top])} \\) ! -type d"
