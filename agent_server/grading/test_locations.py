"""Finds the files of tests whose ids are relative to a folder below the repository.

A row's command may start in a sub-folder (`cd libs/core && pytest tests/unit/test_a.py`); its ids then start there too.
Invariant: no file that the id can mean is left out: what is found is hidden and protected.
"""

import base64
from collections.abc import Iterable

from agent_server.grading.datasets.base import REPOSITORY, run_checked
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task

WANTED = "/tmp/.tests.wanted"
MISSING = f"""
while IFS= read -rd '' path; do [ -e "$path" ] || printf '%s\\0' "$path"; done <{WANTED} | base64 -w0
rm -f {WANTED}
"""


def locate(task: Task, sandbox: Sandbox, files: Iterable[str]) -> tuple[str, ...]:
    """The paths in the repository that the files of ids can mean, sorted.

    Of each: itself where it exists in the repository, else every tracked file whose path ends with it, else itself.
    Absolute paths stay as they are. Raises GraderError where the repository cannot be read.
    """
    wanted = {file.removeprefix("./") for file in files}
    relative = sorted(file for file in wanted if file and not file.startswith("/"))
    if not relative:
        return tuple(sorted(wanted))
    sandbox.write_file(WANTED, "".join(f"{file}\0" for file in relative))
    if not (missing := set(_names(run_checked(sandbox, task, MISSING, cwd=REPOSITORY)))):
        return tuple(sorted(wanted))
    tracked = _names(run_checked(sandbox, task, "git ls-files -z | base64 -w0", cwd=REPOSITORY))
    found = {file: [path for path in tracked if path.endswith(f"/{file}")] or [file] for file in missing}
    return tuple(sorted({path for file in wanted for path in found.get(file, [file])}))


def _names(encoded: str) -> list[str]:
    """Names that a command ended with NUL."""
    return base64.b64decode(encoded).decode(errors="surrogateescape").split("\0")[:-1]
