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
# At the head of a script: ends it where a patch that it applies does not fit, unless the script itself looks at the
# status (`||`, `if`). Otherwise the old tests would run. Such a patch fits the base, so the submission is to blame.
STOP_WHERE_A_PATCH_FAILS = (
    r"trap '{ failed=${BASH_COMMAND%%$'\''\n'\''*};"
    r" [[ $failed =~ ^((/[^ ]*/)?git( +-[cC] +[^ ]+| +-[^ ]+)* +(apply|am)|patch)( |$) ]]"
    r" && [[ ! $failed =~ \ --(check|dry-run|stat|numstat|summary)(\ |$) ]]"
    r' && echo && echo "a patch of the row does not apply to the submission: $failed" && exit 1; }'
    r" 2>/dev/null' ERR"
)
PATCH, INDEX = "/tmp/.test.patch", "/tmp/.test.index"
# A here-document that a script feeds to `git apply`.
APPLIED = re.compile(r"^[^#\n]*\bgit\b[^\n]*\bapply\b[^\n]*<<-?\s*(['\"]?)(\w+)\1[^\n]*\n(.*?\n)\2$", re.M | re.S)


def apply_command(patch: str, options: str = "") -> str:
    """The command `git apply` with the patch as its here-document."""
    return f"git apply -v {f'{options} ' if options else ''}- {here_document(_as_input(patch, options))}"


def here_document(content: str) -> str:
    """bash's here-document of the content, with a newline at its end. Its delimiter is no line of the content."""
    lines, delimiter = set(content.split("\n")), DELIMITER
    while delimiter in lines:
        delimiter += "0"
    lines_of_content = content.removesuffix("\n")
    return f"<<'{delimiter}'\n{lines_of_content}\n{delimiter}"


def applied_patches(script: str) -> Iterator[str]:
    """The patches that a script holds and feeds to `git apply`."""
    return (found[2] for found in APPLIED.findall(script))


def check_fits(task: Task, sandbox: Sandbox, patch: str, base: str, options: str = "") -> None:
    """Raises GraderError where the patch does not apply to the commit `base`. Changes neither index nor files."""
    sandbox.write_file(PATCH, _as_input(patch, options))
    check = (
        f"export GIT_INDEX_FILE={INDEX}; rm -f {INDEX}; git read-tree {shlex.quote(base)}"
        f" && git apply --cached --check {options} {PATCH}; status=$?; rm -f {INDEX} {PATCH}; exit $status"
    )
    result = sandbox.run_clean(check, cwd=REPOSITORY, timeout_s=SETUP_TIMEOUT_S)
    if result.returncode != 0:
        raise GraderError(
            f"row {task.task_id}: its test patch must apply to its base commit {base or 'HEAD'}, and does not:"
            f" {result.message}; correct the row or its image, or drop the row"
        )


def _as_input(patch: str, options: str) -> str:
    """The patch as git's input: with a further newline, as the harness has it. It completes a patch that has lost an
    empty line at its end, and otherwise means nothing, unless git counts lines itself."""
    complete = patch if patch.endswith("\n") else f"{patch}\n"
    return complete if "--recount" in options else f"{complete}\n"
