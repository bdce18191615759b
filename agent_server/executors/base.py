"""Interface between scheduling and running: an executor starts workers, reports when they exit, and signals them."""

import signal
from dataclasses import dataclass
from typing import Protocol

from agent_server.worker.job import Job
from client.errors import StackError


@dataclass(frozen=True, slots=True)
class Launch:
    """The result of a launch: the worker's process, or why there is none."""

    session_id: str
    attempt: int
    pid: int = 0
    start_ticks: int = 0
    failure: StackError | None = None


class Executor(Protocol):
    """A worker is identified by its pid and its start time in clock ticks, since pids are reused.

    No call waits. The executor notifies the server's loop when it gets ready and when a launch has a result.
    """

    @property
    def ready(self) -> bool:
        """Workers can be started now."""

    def start(self) -> None:
        """Begin to get ready, and get ready again whenever it is not."""

    def stop(self) -> None:
        """Start no more workers; running ones go on. Launches without a result get none."""

    def launch(self, job: Job) -> None:
        """Start a worker for the job as soon as possible. Raises TypeError where the job cannot be sent."""

    def launched(self) -> list[Launch]:
        """Results of launches since the last call."""

    def watch(self, pid: int, start_ticks: int) -> bool:
        """Watch a worker of this or an earlier server; False where it is gone. Raises OSError."""

    def ended(self) -> list[int]:
        """Pids of watched workers that have ended since the last call."""

    def signal(self, pid: int, start_ticks: int, number: signal.Signals) -> None:
        """Signal a worker; no error where it is gone."""

    def kill_group(self, pid: int) -> None:
        """Kill the processes that an ended worker left behind."""
