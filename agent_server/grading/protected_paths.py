"""The paths that a submission may not change: a row's tests, and every file that decides how tests run."""

import re
import shlex
from collections.abc import Iterable, Iterator

from agent_server.grading.datasets.base import REPOSITORY, Dataset
from agent_server.grading.test_locations import locate
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task

NAMES = (
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml",
    "sitecustomize.py", "usercustomize.py", "*.pth", "entry_points.txt", ".gitattributes", ".coveragerc", "noxfile.py",
    ".travis.yml", ".gitlab-ci.yml", "Jenkinsfile",
)  # fmt: skip
# Python can run these without checking their source. No fix needs one, so they count under no policy.
COMPILED = ".pyc"
TEST_FOLDERS = ("tests", "test")
FOLDERS = (".github", ".circleci")
# At the top of the repository, these would be imported instead of the test runner.
RUNNER_MODULES = ("pytest", "_pytest", "pluggy", "unittest")
# A script's words that name tests or how they run, without the content of here-documents.
HERE_DOCUMENT = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n.*?^\s*\2$", re.MULTILINE | re.DOTALL)
WORD = re.compile(r"[^\s'\"`;|&()<>=]+")
TEST_NAME = re.compile(r"(?:^|[/_.-])tests?(?:[/_.-]|$)|\.sh$", re.IGNORECASE)
MAKEFILES = ("Makefile", "makefile", "GNUmakefile")


def row_tests(dataset: Dataset, task: Task, sandbox: Sandbox) -> tuple[str, ...]:
    """Files and folders, relative to the repository, that hold the row's tests or that its script names. `sandbox`:
    with the repository before the submission. Raises GraderError."""
    return (*locate(task, sandbox, dataset.test_files(task)), *paths_in_script(dataset.script_of_tests(task)))


def paths_in_script(script: str) -> Iterator[str]:
    """Paths in the repository that a script names and that hold tests or decide how they run."""
    words = [word.split("::")[0] for word in WORD.findall(HERE_DOCUMENT.sub("", script))]
    for word in words:
        path = re.sub(rf"^(?:{REPOSITORY}/|(?:\./)+)", "", word).rstrip("/")
        if path and TEST_NAME.search(path) and not path.startswith(("-", "/", ".")) and "$" not in path:
            yield path
    if "make" in words:
        yield from MAKEFILES


def folders_above(path: str) -> Iterator[str]:
    """`./a`, `./a/b` for `./a/b/c`."""
    for number, character in enumerate(path):
        if character == "/" and number > 1:
            yield path[:number]


def find_command(files: Iterable[str]) -> str:
    """A `find` command that lists everything protected, of any kind but folders. `files`: the row's tests."""
    patterns = {pattern for file in files for pattern in _patterns_of_test(re.sub(r"([*?\[\\])", r"\\\1", file))}
    tests = [f"-path {shlex.quote(pattern)}" for pattern in sorted(patterns)]
    names = [f"-name {shlex.quote(name)}" for name in NAMES] + [f"-name '*{COMPILED}' ! -path '*/site-packages/*'"]
    folders = [f"-path './{folder}/*'" for folder in FOLDERS]
    runners = [
        f"-path {shlex.quote(pattern)}"
        for name in RUNNER_MODULES
        for pattern in (f"./{name}", f"./{name}/*", f"./{name}.*")
    ]
    return f"find . -path ./.git -prune -o \\( {' -o '.join([*tests, *names, *folders, *runners])} \\) ! -type d"


def _patterns_of_test(file: str) -> Iterator[str]:
    """The test's file; where it lies in a folder of tests, that whole folder, since tests use the files beside them.
    Also what could block it: a folder in its place, a file in the place of its folder."""
    parts = file.split("/")
    last = next((number for number, part in enumerate(parts[:-1]) if part in TEST_FOLDERS), len(parts) - 1)
    whole = "./" + "/".join(parts[: last + 1])
    yield from (*folders_above(whole), whole, f"{whole}/*")
