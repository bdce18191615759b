"""Interface between scheduling and running: an executor starts workers, reports when they exit, and signals them."""

import signal
from typing import Protocol

from agent_server.worker.job import Job


class Executor(Protocol):
    """A worker is identified by its pid and its start time in clock ticks, since pids are reused."""

    @property
    def ready(self) -> bool:
        """Workers can be started now."""

    def start(self) -> None:
        """Get ready, where it is not. Raises WorkerLost."""

    def stop(self) -> None:
        """Start no more workers; running ones go on."""

    def launch(self, job: Job) -> int:
        """Start a worker for the job and return its pid. Raises WorkerLost."""

    def watch(self, pid: int, start_ticks: int | None = None) -> bool:
        """Watch a worker of this or an earlier server; False where it is gone."""

    def ended(self) -> list[int]:
        """Pids of watched workers that have ended since the last call."""

    def signal(self, pid: int, start_ticks: int, number: signal.Signals) -> None:
        """Signal a worker; no error where it is gone."""

    def kill_group(self, pid: int) -> None:
        """Kill the processes that an ended worker left behind."""
