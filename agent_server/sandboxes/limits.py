"""What a sandbox may use, and the watchdog that ends what uses more.

Limits hold without cgroups: a thread of the worker looks at the sandbox ten times a second. A look between two is blind,
so a limit can be passed for a moment; and memory that no process maps (a memfd that was only written to) is not seen. A
delegated cgroup2 with memory and pids controllers would close both gaps; none was at hand to test with, so none is used.
Invariant: whatever is over a limit is ended, without touching another sandbox; what cannot be ended alone ends with its
sandbox.
"""

import logging
import os
import threading
import time
from dataclasses import dataclass

from agent_server.sandboxes.base import Used
from agent_server.sandboxes.inside import Inside

log = logging.getLogger(__name__)
LOOK_S = 0.1
LOOK_SHARE = 0.05  # of one core at most, however much there is to look at
END_WITHIN_S = 2.0  # a fork bomb that has not been stopped by then ends with its sandbox
THREADS_A_PROCESS = 8  # on average, before threads count as too many processes
DELETING_BYTES = 2**20  # what a command may write to a full sandbox while it deletes


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one sandbox, over all its processes. `memory_bytes`: resident, and files (they lie in memory). `disk_bytes`: files
    alone. `cpu_s`: since its start, of processes that have ended too."""

    memory_bytes: int
    processes: int
    disk_bytes: int
    cpu_s: float


class Watchdog:
    """Ends what is over `memory`, `processes` or `disk`, and the whole sandbox when it is over `cpu`."""

    def __init__(self, inside: Inside, limits: Limits):
        self.ended_by = ""  # the limit that ended the whole sandbox
        self._inside, self._limits = inside, limits
        self._exceeded = ""  # the limit that ended the command that runs
        self._cpu_s = self._cpu_seen_s = 0.0
        self._peak_bytes = 0
        self._files_allowed = limits.disk_bytes
        self._lock = threading.Lock()  # a command begins and ends between two looks, never within one
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sandbox watchdog", daemon=True)
        if inside.room_bytes() < limits.disk_bytes:
            log.warning(
                "the sandbox holds only %d MiB of files, less than AGENT_SERVER_SANDBOX_DISK_MIB=%d; raise `sessiondir max size` in apptainer.conf",
                inside.room_bytes() >> 20, limits.disk_bytes >> 20,
            )  # fmt: skip
        self._thread.start()

    def command_begins(self) -> None:
        """Returns when nothing of an earlier command is being ended any more."""
        with self._lock:
            self._exceeded = ""

    def command_ended(self) -> str:
        """The limit that ended it, or ""."""
        with self._lock:
            return self._exceeded

    def used(self) -> Used:
        """As of now, or as last seen where the sandbox has ended."""
        with self._lock:
            try:
                self._over()
            except ProcessLookupError:
                pass
            return Used(self._cpu_s, self._peak_bytes)

    def close(self) -> None:
        """Stop looking. Call it when the sandbox's processes have been killed, so that no look lasts."""
        self._closing.set()
        self._thread.join()
        self._inside.close()

    def _watch(self) -> None:
        _come_first()
        wait_s = LOOK_S
        while not self._closing.wait(wait_s) and not self.ended_by:
            started = time.thread_time()
            try:
                with self._lock:
                    limit = self._over()
                    wait_s = max(LOOK_S, (time.thread_time() - started) / LOOK_SHARE)
                    if limit:
                        self._end(limit)
            except ProcessLookupError:
                return  # the sandbox is gone
            except Exception:
                log.exception("the sandbox's watchdog failed; a sandbox without one is not left running")
                self._inside.end()
                raise

    def _end(self, limit: str) -> None:
        log.warning("a sandbox exceeded its limit of %s", limit)
        self._exceeded = limit
        if limit == "cpu" or not self._inside.end_processes(END_WITHIN_S) or self._inside.files_bytes() > self._limits.memory_bytes:
            self.ended_by = limit
            self._inside.end()
        self._files_allowed = max(self._limits.disk_bytes, self._inside.files_bytes() + DELETING_BYTES)

    def _over(self) -> str:
        limits, pids = self._limits, self._inside.pids()
        if len(pids) > limits.processes:
            return "processes"
        usage = self._inside.usage(pids)
        # Counted in steps, since the sum falls when a process goes whose parent did not wait for it.
        self._cpu_s += max(0.0, usage.cpu_s - self._cpu_seen_s)
        self._cpu_seen_s = usage.cpu_s
        self._peak_bytes = max(self._peak_bytes, usage.resident_bytes + usage.files_bytes)
        if self._cpu_s > limits.cpu_s:
            return "cpu"
        if usage.threads > limits.processes * THREADS_A_PROCESS:
            return "processes"
        if usage.files_bytes > self._files_allowed:
            return "disk"
        self._files_allowed = max(limits.disk_bytes, min(self._files_allowed, usage.files_bytes + DELETING_BYTES))
        if usage.files_bytes + usage.resident_bytes <= limits.memory_bytes:
            return ""
        return "memory" if usage.files_bytes + self._inside.proportional_bytes() > limits.memory_bytes else ""


def _come_first() -> None:
    """Let this thread run before all ordinary ones: among a thousand processes of a fork bomb its turn would come too late."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except PermissionError:
        log.info("no right to a real-time priority (CAP_SYS_NICE); a fork bomb may then take longer to stop")
