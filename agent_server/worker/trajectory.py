"""A session's trajectory file, in mini-swe-agent's format and under the name by which its inspector finds it.

Invariant: `info` holds the exit status and the submission of the session's record. An agent that submits its
repository's diff does not know that diff; a file of another format stays as the agent wrote it.
"""

import json
import logging
from pathlib import Path

from agent_server.agents.base import AgentResult
from agent_server.private_files import write_private
from client.redaction import Redaction

log = logging.getLogger(__name__)
SUFFIX = ".traj.json"


def record_ending(path: Path, result: AgentResult, redaction: Redaction) -> None:
    """Add the ending to the file that the agent wrote, if any. A disk error is logged: it must not cost the session its
    result."""
    try:
        record = json.loads(path.read_bytes())
        ending = {"exit_status": result.exit_status, "submission": result.submission}
        if not isinstance(info := record["info"], dict) or info | ending == info:
            return
        text = redaction(json.dumps(record | {"info": info | ending}, indent=2))
        write_private(path, text.encode())
    except FileNotFoundError:
        return
    except (ValueError, LookupError, TypeError, RecursionError):
        return  # of another format
    except OSError as error:
        log.error("the trajectory %s was not completed: %s", path, error)
