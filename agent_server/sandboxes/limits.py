"""Sandbox limits, enforced by polling.

Polling needs no cgroups. A limit can be exceeded for a moment between two checks, and memory that no process maps (a
memfd that was only written to) is not counted. Where the sandbox has a cgroup, the kernel closes both gaps for memory
and tasks, and the enforcer kills what the kernel stopped, so that a command ends in the same way everywhere.
Invariant: whatever exceeds a limit is killed without touching another sandbox; what cannot be killed alone is killed
with its sandbox.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass

from agent_server.sandboxes.cgroups.cgroup import Cgroup
from agent_server.sandboxes.procfs import SandboxProcfs

log = logging.getLogger(__name__)
KILL_TIMEOUT_S = 2.0  # a fork bomb that still runs then is killed with its sandbox
THREADS_PER_PROCESS = 8  # on average, before threads count as too many processes
DELETE_HEADROOM_BYTES = 2**20  # what a command may write to a full sandbox while it deletes files


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one sandbox, each over all its processes.

    `memory_bytes`: resident memory plus files, which lie in memory. `disk_bytes`: files alone, and what commands print.
    `cpu_s`: CPU seconds since the start, ended processes included.
    """

    memory_bytes: int
    processes: int
    disk_bytes: int
    cpu_s: float

    @property
    def tasks(self) -> int:
        """Limit of processes and threads together."""
        return self.processes * THREADS_PER_PROCESS


class LimitEnforcer:
    """Checks a sandbox's usage and kills what exceeds a limit.

    `command_limit`: the limit that the running command exceeded, or "".
    `sandbox_limit`: the limit for which the sandbox was killed, or "".
    `cpu_s`, `peak_bytes`: usage as of the last check.
    """

    def __init__(self, procfs: SandboxProcfs, limits: Limits, cgroup: Cgroup | None):
        self.command_limit = self.sandbox_limit = ""
        self.peak_bytes, self.cpu_s = 0, 0.0
        self._procfs, self._limits, self._cgroup = procfs, limits, cgroup
        self._last_cpu_s = 0.0
        self._allowed_file_bytes = limits.disk_bytes
        if procfs.capacity_bytes() < limits.disk_bytes:
            log.warning(
                "AGENT_SERVER_SANDBOX_DISK_MIB=%d exceeds the %d MiB of files that a sandbox can hold; "
                "raise `sessiondir max size` in apptainer.conf",
                limits.disk_bytes >> 20,
                procfs.capacity_bytes() >> 20,
            )

    def check(self) -> str:
        """Return the exceeded limit, or "". Raises ProcessLookupError when the sandbox is gone."""
        if limit := self._limit_hit_in_kernel():
            return limit
        limits, pids = self._limits, self._procfs.pids()
        if len(pids) > limits.processes:
            return "processes"
        usage = self._procfs.usage(pids)
        # The sum falls when a process ends and its parent did not wait for it, so only increases are added.
        self.cpu_s += max(0.0, usage.cpu_s - self._last_cpu_s)
        self._last_cpu_s = usage.cpu_s
        self.peak_bytes = max(self.peak_bytes, usage.resident_bytes + usage.file_bytes)
        if self.cpu_s > limits.cpu_s:
            return "cpu"
        if usage.threads > limits.tasks:
            return "processes"
        if usage.file_bytes > self._allowed_file_bytes:
            return "disk"
        headroom_bytes = min(self._allowed_file_bytes, usage.file_bytes + DELETE_HEADROOM_BYTES)
        self._allowed_file_bytes = max(limits.disk_bytes, headroom_bytes)
        if usage.file_bytes + usage.resident_bytes <= limits.memory_bytes:
            return ""
        # Resident memory counts shared pages several times. The exact sum is expensive, so it is read only here.
        return "memory" if usage.file_bytes + self._procfs.proportional_bytes() > limits.memory_bytes else ""

    def enforce(self, limit: str) -> None:
        """Kill everything but the shell. Kill the sandbox too for `cpu`, or where the rest cannot be killed alone.

        Raises ProcessLookupError when the sandbox is gone.
        """
        log.warning("a sandbox exceeded its limit of %s", limit)
        # Both are set first: the kernel may already have killed a process without which the sandbox cannot live.
        self.command_limit = self.sandbox_limit = limit
        if (
            limit == "cpu"
            or not self._procfs.kill_processes(KILL_TIMEOUT_S)
            or self._procfs.file_bytes() > self._limits.memory_bytes
        ):
            self._procfs.kill_sandbox()
        else:
            self.sandbox_limit = ""
        # The output of commands is dropped before the next one.
        file_bytes = self._procfs.file_bytes() + self._procfs.output_bytes()
        self._allowed_file_bytes = max(self._limits.disk_bytes, file_bytes + DELETE_HEADROOM_BYTES)

    def enforce_kernel_events(self) -> None:
        """Enforce a limit that the kernel hit since the last check, so that it counts for the running command."""
        if limit := self._limit_hit_in_kernel():
            with suppress(ProcessLookupError):
                self.enforce(limit)

    def _limit_hit_in_kernel(self) -> str:
        return self._cgroup.take_limit_event() if self._cgroup else ""
