"""The test patch of a row: the command that applies it in an evaluation script, and the check that it fits its base.

Invariant: the patch reaches git byte for byte. Line ends, a blank last line of context and binary hunks are part of it.
"""

import re
import shlex
from collections.abc import Iterator

from agent_server.grading.datasets.base import REPOSITORY, SETUP_TIMEOUT_S
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task
from client.errors import GraderError

DELIMITER = "EOF_114329324912"  # as in SWE-bench's scripts
PATCH, INDEX = "/tmp/.test.patch", "/tmp/.test.index"
# A here-document that a script feeds to `git apply`.
APPLIED = re.compile(r"^[^#\n]*\bgit\b[^\n]*\bapply\b[^\n]*<<-?\s*(['\"]?)(\w+)\1[^\n]*\n(.*?\n)\2$", re.M | re.S)


def apply_command(patch: str) -> str:
    """The command `git apply` with the patch as its here-document, whose delimiter is no line of the patch."""
    lines, delimiter = set(patch.split("\n")), DELIMITER
    while delimiter in lines:
        delimiter += "0"
    return f"git apply -v - <<'{delimiter}'\n{_as_input(patch)}\n{delimiter}"


def applied_patches(script: str) -> Iterator[str]:
    """The patches that a script holds and feeds to `git apply`."""
    return (found[2] for found in APPLIED.findall(script))


def check_fits(task: Task, sandbox: Sandbox, patch: str, base: str) -> None:
    """Raises GraderError where the patch does not apply to the commit `base`. Changes neither index nor files."""
    sandbox.write_file(PATCH, f"{_as_input(patch)}\n")
    check = (
        f"export GIT_INDEX_FILE={INDEX}; rm -f {INDEX}; git read-tree {shlex.quote(base)}"
        f" && git apply --cached --check {PATCH}; status=$?; rm -f {INDEX} {PATCH}; exit $status"
    )
    result = sandbox.run(f"( {check} )", cwd=REPOSITORY, timeout_s=SETUP_TIMEOUT_S)
    if result.returncode != 0:
        raise GraderError(
            f"row {task.task_id}: its test patch must apply to its base commit {base or 'HEAD'}, and does not:"
            f" {result.output.strip()[-500:]}; correct the row or its image, or drop the row"
        )


def _as_input(patch: str) -> str:
    """The patch as git's input, without its last newline. git ignores further empty lines, and a patch that has lost
    its last newline may need two: a binary hunk ends with an empty line."""
    return patch if patch.endswith("\n") else f"{patch}\n"
