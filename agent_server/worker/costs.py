"""Time, CPU and memory that one session used."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from agent_server.sandboxes.base import ResourceUsage


@dataclass(slots=True)
class SessionCosts:
    """`seconds`: wall time by phase. `peak_memory_bytes`: of the sandbox that held the most, and of the worker itself:
    an upper bound of both together. `cpu_seconds`: of the worker by phase; of the sandboxes as `commands` (the agent's)
    and `tests` (those of grading and of the canary run together).
    """

    seconds: dict[str, float] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    peak_memory_bytes: int = 0

    def add_worker(self, peak_bytes: int) -> None:
        """Count the worker's own memory, at the end."""
        self.peak_memory_bytes += peak_bytes

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Add the wall and CPU time of the block to `phase`."""
        started, cpu_before = time.monotonic(), time.process_time()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - started
            self.cpu_seconds[phase] = self.cpu_seconds.get(phase, 0.0) + time.process_time() - cpu_before

    def add_sandbox(self, phase: str, used: ResourceUsage) -> None:
        """Add the CPU time of an ended sandbox to `phase`: a session may have several sandboxes for one."""
        self.cpu_seconds[phase] = self.cpu_seconds.get(phase, 0.0) + used.cpu_s
        self.peak_memory_bytes = max(self.peak_memory_bytes, used.peak_bytes)
