"""Attributes errors during grading to the submission or to the infrastructure.

Invariant: an error counts against the submission only if the sandbox is alive and the same steps worked before the
submission was there.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from agent_server.grading.datasets.base import SETUP_TIMEOUT_S
from agent_server.sandboxes.base import Sandbox
from client.errors import GraderError, SandboxDied, SandboxFileError, SandboxLimitExceeded


class SubmissionFailed(Exception):
    """The submission is graded without its tests. `status`: as in Grade; `log`: the reason."""

    def __init__(self, status: str, log: str = ""):
        super().__init__(f"{status}: {log}")
        self.status, self.log = status, log


@contextmanager
def attribute_to_submission(sandbox: Sandbox, reason: str) -> Iterator[None]:
    """Turn an error of the block into SubmissionFailed with status patch_failed, unless the sandbox has died."""
    try:
        yield
    except (GraderError, SandboxDied, SandboxFileError, SandboxLimitExceeded) as failure:
        if isinstance(failure, SandboxDied) and not _is_alive(sandbox):
            raise
        raise SubmissionFailed("patch_failed", f"{reason}: {failure}") from failure


def _is_alive(sandbox: Sandbox) -> bool:
    """Whether the sandbox runs commands."""
    try:
        return sandbox.run_clean("true", cwd="/", timeout_s=SETUP_TIMEOUT_S).returncode == 0
    except SandboxDied:
        return False
