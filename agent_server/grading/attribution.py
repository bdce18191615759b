"""Attributes errors during grading to the submission or to the infrastructure.

Invariant: an error counts against the submission only if the sandbox is alive and the same steps worked before the
submission was there.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from client.errors import GraderError, SandboxFileError, SandboxLimitExceeded


class SubmissionFailed(Exception):
    """The submission is graded without its tests. `status`: as in Grade; `log`: the reason."""

    def __init__(self, status: str, log: str = ""):
        super().__init__(f"{status}: {log}")
        self.status, self.log = status, log


@contextmanager
def attribute_to_submission(reason: str) -> Iterator[None]:
    """Turn an error of the block into SubmissionFailed with status patch_failed, unless the sandbox has died."""
    try:
        yield
    except (GraderError, SandboxFileError, SandboxLimitExceeded) as failure:
        raise SubmissionFailed("patch_failed", f"{reason}: {failure}") from failure
