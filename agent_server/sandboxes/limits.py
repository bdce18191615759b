"""What a sandbox may use, and the judge of what it does use.

Limits hold without cgroups, by looking. What happens between two looks is not seen, so a limit can be passed for a moment;
nor is memory that no process maps (a memfd that was only written to). Where the sandbox has a cgroup, the kernel closes both
gaps for memory and tasks; what it stopped is then ended like all else, so that a command ends in the same way everywhere.
Invariant: whatever is over a limit is ended, without touching another sandbox; what cannot be ended alone ends with its
sandbox.
"""

import logging
from dataclasses import dataclass

from agent_server.sandboxes.cgroups.cgroup import Cgroup
from agent_server.sandboxes.procfs import SandboxProcfs

log = logging.getLogger(__name__)
END_WITHIN_S = 2.0  # a fork bomb that has not been stopped by then ends with its sandbox
THREADS_PER_PROCESS = 8  # on average, before threads count as too many processes
DELETING_BYTES = 2**20  # what a command may write to a full sandbox while it deletes


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one sandbox, over all its processes. `memory_bytes`: resident, and files (they lie in memory). `disk_bytes`: files
    alone. `cpu_s`: since its start, of processes that have ended too."""

    memory_bytes: int
    processes: int
    disk_bytes: int
    cpu_s: float

    @property
    def tasks(self) -> int:
        """Processes and threads together."""
        return self.processes * THREADS_PER_PROCESS


class LimitEnforcer:
    """`over` looks, `end` acts. `exceeded`: the limit that ended the command that runs. `ended_by`: the one that ended the
    sandbox. `cpu_s` and `peak_bytes`: used so far, as of the last look."""

    def __init__(self, inside: SandboxProcfs, limits: Limits, cgroup: Cgroup | None):
        self.exceeded = self.ended_by = ""
        self.peak_bytes, self.cpu_s = 0, 0.0
        self._inside, self._limits, self._cgroup = inside, limits, cgroup
        self._cpu_seen_s = 0.0
        self._files_allowed = limits.disk_bytes
        if inside.capacity_bytes() < limits.disk_bytes:
            log.warning(
                "the sandbox holds only %d MiB of files, less than AGENT_SERVER_SANDBOX_DISK_MIB=%d; raise `sessiondir max size` in apptainer.conf",
                inside.capacity_bytes() >> 20, limits.disk_bytes >> 20,
            )  # fmt: skip

    def over(self) -> str:
        """The limit that the sandbox is over, or "". Raises ProcessLookupError when the sandbox is gone."""
        if limit := self._stopped_by_kernel():
            return limit
        limits, pids = self._limits, self._inside.pids()
        if len(pids) > limits.processes:
            return "processes"
        usage = self._inside.usage(pids)
        # Counted in steps, since the sum falls when a process goes whose parent did not wait for it.
        self.cpu_s += max(0.0, usage.cpu_s - self._cpu_seen_s)
        self._cpu_seen_s = usage.cpu_s
        self.peak_bytes = max(self.peak_bytes, usage.resident_bytes + usage.files_bytes)
        if self.cpu_s > limits.cpu_s:
            return "cpu"
        if usage.threads > limits.tasks:
            return "processes"
        if usage.files_bytes > self._files_allowed:
            return "disk"
        self._files_allowed = max(limits.disk_bytes, min(self._files_allowed, usage.files_bytes + DELETING_BYTES))
        if usage.files_bytes + usage.resident_bytes <= limits.memory_bytes:
            return ""
        return "memory" if usage.files_bytes + self._inside.proportional_bytes() > limits.memory_bytes else ""

    def end(self, limit: str) -> None:
        """End everything but the shell; the sandbox itself over `cpu`, or where that does not help."""
        log.warning("a sandbox exceeded its limit of %s", limit)
        self.exceeded = self.ended_by = (
            limit  # also where the sandbox is gone: the kernel may choose what it cannot live without
        )
        if (
            limit == "cpu"
            or not self._inside.end_processes(END_WITHIN_S)
            or self._inside.files_bytes() > self._limits.memory_bytes
        ):
            self._inside.end()
        else:
            self.ended_by = ""
        self._files_allowed = max(self._limits.disk_bytes, self._inside.files_bytes() + DELETING_BYTES)

    def enforce_kernel_events(self) -> None:
        """End what the kernel has stopped since the last look, so that it counts for the command that runs now, not a later one."""
        if limit := self._stopped_by_kernel():
            try:
                self.end(limit)
            except ProcessLookupError:
                pass

    def _stopped_by_kernel(self) -> str:
        return self._cgroup.exceeded() if self._cgroup else ""
