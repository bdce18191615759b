"""The seam between deciding and running: whoever can start workers, say which have ended, and end them."""

import signal
from typing import Protocol

from agent_server.worker.job import Job


class Executor(Protocol):
    """A worker is named by its pid, and told from a later process of that number by its start time in clock ticks."""

    @property
    def ready(self) -> bool:
        """Workers can be started now."""

    def start(self) -> None:
        """Make ready unless it is. Raises WorkerLost."""

    def stop(self) -> None:
        """Start no more workers; those that run go on."""

    def launch(self, job: Job) -> int:
        """Start a worker for the job and return its pid. Raises WorkerLost."""

    def watch(self, pid: int, start_ticks: int | None = None) -> bool:
        """Watch a worker, ours or an earlier server's; False where it is gone."""

    def ended(self) -> list[int]:
        """Watched workers that have ended since the last call."""

    def signal(self, pid: int, start_ticks: int, number: signal.Signals) -> None:
        """Signal a worker; one that is gone is fine."""

    def kill_group(self, pid: int) -> None:
        """End what an ended worker left behind."""
