"""The message that starts a worker: a session's attempt and everything the worker needs for it.

Invariant: imports nothing of agents, sandboxes or grading, so that queueing a session does not load them.
"""

from dataclasses import dataclass

from agent_server.tasks.task import Task
from client.wire import Mode

MAX_ATTEMPTS = 3  # of a session, infrastructure failures included


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt at one session. `base_url` and `api_key`: the session's model endpoint. `mode`: train or eval."""

    session_id: str
    attempt: int
    base_url: str
    api_key: str
    mode: Mode
    task: Task

    @property
    def attempt_id(self) -> str:
        """Unique per attempt: the name of its scratch folder."""
        return f"{self.session_id}.{self.attempt}"
