"""The submission of an agent: the patch that it gave itself, or else the diff of its repository.

Invariant: a submission is whole or refused, with the reason. It is never cut.
"""

from dataclasses import dataclass, replace

from agent_server.agents.base import AgentResult
from agent_server.grading import changes
from agent_server.grading.changes import MAX_DIFF_BYTES
from agent_server.grading.grade import NO_SUBMISSION, Grade
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.characters import whole_characters
from client.errors import SandboxFileError, SandboxLimitExceeded

TOO_LARGE = "submission_too_large"


@dataclass(frozen=True, slots=True)
class Submission:
    """The agent's result with the patch to grade in it. `left_out`: new files that are too large for the repository's
    diff. `refused`: why a patch there was is not graded, or ""."""

    result: AgentResult
    left_out: tuple[str, ...] = ()
    refused: str = ""

    def ungraded(self) -> Grade | None:
        """The grade without running tests; None where there is a patch to grade."""
        if self.refused:
            return Grade(resolved=False, status=TOO_LARGE, log=self.refused)
        return None if self.result.submission.strip() else NO_SUBMISSION


def collect(result: AgentResult, sandbox: Sandbox) -> Submission:
    """The submission of an agent that ended in this sandbox. Its processes end: they must not write while the diff is
    made. Half surrogate pairs in what it returned are replaced: no record can hold them. Raises SandboxDied."""
    result = replace(
        result,
        exit_status=whole_characters(result.exit_status),
        submission=whole_characters(result.submission),
    )
    if not result.submitted:
        return Submission(result)
    if result.submission.strip():
        size = len(result.submission.encode())
        if size <= MAX_DIFF_BYTES:
            return Submission(result)
        reason = f"the agent's patch has {size} bytes and may have at most {MAX_DIFF_BYTES}"
        return Submission(replace(result, submission=""), refused=reason)
    sandbox.kill_background()
    try:
        found = changes.collect_changes(sandbox)
    except SandboxFileError as full:
        return Submission(result, refused=str(full))
    except SandboxLimitExceeded as exceeded:
        return Submission(AgentResult.over_limit(exceeded, result.n_calls))
    return Submission(replace(result, submission=found.patch), found.left_out, found.refused)
