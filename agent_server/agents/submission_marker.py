"""mini-swe-agent's submission marker in the output of a command: whether it submits, and what.

Invariant: pure; the memory that it takes is that of the output, whatever its lines are.
"""

import re

from agent_server.grading.patches import is_patch
from agent_server.sandboxes.base import CommandResult

SUBMIT_LINE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
BEGINS_WITH_SUBMIT_LINE = re.compile(rf"""\s*echo\s+["']?{SUBMIT_LINE}["']?\s*(?:$|[&;|\n])""")
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def find_submission(command: str, result: CommandResult) -> str | None:
    """The patch that the command printed after the submission marker, "" where it printed none, or None where it does
    not submit.

    mini-swe-agent's rule: the marker is the first line. Lines that the command did not print itself do not count: those
    of bash and of startup files before it began, and, where the command begins with printing the marker, whatever comes
    before (a trace of bash, say). Lines after the marker that are no patch are no submission.
    """
    output = result.own_output.lstrip()
    if (line := _find_line(output, SUBMIT_LINE)) is None:
        return None
    if line.start > 0 and not BEGINS_WITH_SUBMIT_LINE.match(command):
        return None
    rest = output[line.stop :]
    return rest if is_patch(rest) else ""


def _find_line(text: str, content: str) -> slice | None:
    """Place of the first line that is `content` between blanks, with its end; the lines are those of str.splitlines,
    which would take many times the memory of the text."""
    start = text.find(content)
    while start >= 0:
        first, last = start, start + len(content)
        while first > 0 and text[first - 1] not in LINE_ENDS and text[first - 1].isspace():
            first -= 1
        while last < len(text) and text[last] not in LINE_ENDS and text[last].isspace():
            last += 1
        if (first == 0 or text[first - 1] in LINE_ENDS) and (last == len(text) or text[last] in LINE_ENDS):
            return slice(first, last + (2 if text.startswith("\r\n", last) else 1))
        start = text.find(content, start + 1)
    return None
