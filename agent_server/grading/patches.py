"""A submission as a patch: its statistics, and its application to the repository.

Invariant: each apply command starts from what the one before left untouched. Applying runs none of the patch's
content.
"""

import re
from dataclasses import asdict, dataclass

from unidiff import PatchSet

from agent_server.grading.datasets.base import REPOSITORY, SETUP_TIMEOUT_S
from agent_server.grading.patch_files import file_changes
from agent_server.sandboxes.base import Sandbox

SUBMISSION = "/tmp/.submission.patch"
PATCH = f"patch -p1 --unified --batch --forward --no-backup-if-mismatch --reject-file=- -i {SUBMISSION}"
APPLY_COMMANDS = {
    "git apply": f"git apply {SUBMISSION}",
    "git apply, whitespace ignored": f"git apply --ignore-whitespace --recount {SUBMISSION}",
    # git refuses to touch .git in whatever spelling. patch does not, and the next git command would run its hooks.
    "patch -p1": (
        f"{PATCH} --dry-run && rm -rf /tmp/.git.aside && mv .git /tmp/.git.aside"
        f" && {{ {PATCH}; status=$?; rm -rf .git; mv /tmp/.git.aside .git; exit $status; }}"
    ),
}
CHANGES_GIT = re.compile(r"^(?:diff --git|---|\+\+\+|rename|copy)\s.*(?:^|[\s/\"])\.git/", re.MULTILINE)
# unidiff is not made for hostile text. It keeps an object for each file and blank line, about 50 times their size.
MAX_PARSED = 2**20  # characters
# Headers on which its expressions take quadratic time.
SLOW_HEADER = re.compile(r"^(?:diff --git .*://|Binary files? .* and .* and )", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Size of a patch. `files`: changed, whether by hunks, a mode or a rename. `bytes`: of the text in UTF-8."""

    files: int
    added_lines: int
    removed_lines: int
    bytes: int

    def as_dict(self) -> dict[str, int]:
        """The fields by name."""
        return asdict(self)


def statistics(patch: str) -> Statistics:
    """Statistics of a unified diff; of other text, zeros and its size. Never raises.

    A patch whose hunks have wrong counts may still apply, since one apply command recounts. Its lines are counted by
    their first character, and so are those of a patch that is too large to parse.
    """
    size = len(patch.encode(errors="replace"))
    if len(patch) > MAX_PARSED or SLOW_HEADER.search(patch):
        return _count_by_prefix(patch, size)
    try:
        files = PatchSet(patch, metadata_only=True)
    except Exception:  # the policy writes the patch, so unidiff may fail on it in any way
        return _count_by_prefix(patch, size)
    return Statistics(len(files), files.added, files.removed, size)


def paths_in(patch: str) -> tuple[str, ...]:
    """The files that a unified diff changes, sorted: by their old names, their new ones, or both."""
    return tuple(sorted({name for change in file_changes(patch) for name in (change.old, change.new) if name}))


def _count_by_prefix(patch: str, size: int) -> Statistics:
    lines = patch.split("\n")
    return Statistics(
        # A binary file has only the first of the two lines, and a diff that is not git's only the second.
        files=max(sum(line.startswith(head) for line in lines) for head in ("diff --git ", "+++ ")),
        added_lines=sum(line.startswith("+") and not line.startswith("+++ ") for line in lines),
        removed_lines=sum(line.startswith("-") and not line.startswith("--- ") for line in lines),
        bytes=size,
    )


def is_patch(text: str) -> bool:
    """Whether the text has a hunk, or a change that git writes without one."""
    return re.search(r"^(@@ |diff --git |GIT binary patch)", text, re.MULTILINE) is not None


def write(submission: str, sandbox: Sandbox) -> None:
    """Write the patch to the file SUBMISSION. A diff may have lost its last newline in a chat; git apply needs it."""
    sandbox.write_file(SUBMISSION, submission if submission.endswith("\n") else submission + "\n")


def apply(submission: str, sandbox: Sandbox) -> tuple[str, str]:
    """Apply the written patch: the name of the command of APPLY_COMMANDS that did and "", or "" and the output of
    each."""
    if CHANGES_GIT.search(submission):
        return "", "the patch changes files of .git"
    failures = []
    for name, command in APPLY_COMMANDS.items():
        result = sandbox.run_clean(command, cwd=REPOSITORY, timeout_s=SETUP_TIMEOUT_S)
        if result.returncode == 0:
            return name, ""
        failures.append(f"{name}: {result.message}")
    return "", "\n".join(failures)
