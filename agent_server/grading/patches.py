"""A submission as a patch: what it is, and how it is applied.

Invariant: each step of the ladder is tried on what the one before left untouched. Applying runs none of the patch's content.
"""

import re
from dataclasses import asdict, dataclass

from agent_server.grading.datasets.base import REPOSITORY, SETUP_TIMEOUT_S
from agent_server.sandboxes.base import Sandbox

SUBMISSION = "/tmp/.submission.patch"
PATCH = f"patch -p1 --unified --batch --forward --no-backup-if-mismatch --reject-file=- -i {SUBMISSION}"
LADDER = {
    "git apply": f"git apply {SUBMISSION}",
    "git apply, whitespace ignored": f"git apply --ignore-whitespace --recount {SUBMISSION}",
    # git refuses to touch .git in whatever spelling, patch does not; what stands in there would be run by the next git command.
    "patch -p1": f"{PATCH} --dry-run && rm -rf /tmp/.git.aside && mv .git /tmp/.git.aside && {{ {PATCH}; status=$?; rm -rf .git; mv /tmp/.git.aside .git; exit $status; }}",
}
OF_GIT = re.compile(r"^(?:diff --git|---|\+\+\+|rename|copy)\s.*(?:^|[\s/\"])\.git/", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Statistics:
    files: int
    added_lines: int
    removed_lines: int
    bytes: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def statistics(patch: str) -> Statistics:
    """Of a unified diff; of other text, zeros and its size."""
    lines = patch.splitlines()
    return Statistics(
        files=sum(line.startswith("+++ ") for line in lines),
        added_lines=sum(line.startswith("+") and not line.startswith("+++ ") for line in lines),
        removed_lines=sum(line.startswith("-") and not line.startswith("--- ") for line in lines),
        bytes=len(patch.encode(errors="replace")),
    )


def is_patch(text: str) -> bool:
    """Whether it can be one at all: some hunk, or a change that git writes without one."""
    return re.search(r"^(@@ |diff --git |GIT binary patch)", text, re.MULTILINE) is not None


def apply(submission: str, sandbox: Sandbox) -> tuple[str, str]:
    """The name of the step that took, and "" with what each step said where none did."""
    if OF_GIT.search(submission):
        return "", "the patch changes files of .git"
    # A diff may lack its last newline by the time it has been through a chat; git apply insists on it.
    sandbox.write_file(SUBMISSION, submission if submission.endswith("\n") else submission + "\n")
    said = []
    for name, command in LADDER.items():
        result = sandbox.run(command, cwd=REPOSITORY, timeout_s=SETUP_TIMEOUT_S)
        if result.returncode == 0:
            return name, ""
        said.append(f"{name}: {result.output.strip()[-500:]}")
    return "", "\n".join(said)
