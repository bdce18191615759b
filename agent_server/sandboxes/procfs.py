"""Processes, memory, files and CPU time of one sandbox, read on the host from the sandbox's own /proc and file systems.

That /proc lists the sandbox's processes alone, so a scan costs what the sandbox runs, not what the node runs. All
access is by descriptors, which need no path through mounts that a host process may not enter (FUSE, user namespaces).
Invariant: a signal goes to the process whose directory was opened, so it cannot reach a process outside.
"""

import logging
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

from agent_server.sandboxes.namespaces import PID, run_in_namespaces
from agent_server.sandboxes.processes import CLOCK_TICKS_PER_S, ENDED_STATES

log = logging.getLogger(__name__)
DIRECTORIES = ("/proc", "/tmp", "/dev/shm")  # /tmp is on the tmpfs that also holds the writable layer over the image
INIT = "1"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
BLOCK_BYTES = 512  # of st_blocks
INODE_BYTES = 1024  # about the kernel's cost of an empty file


@dataclass(frozen=True, slots=True)
class UsageSnapshot:
    """Usage at one moment. `resident_bytes` is an upper bound: shared pages count once for each process. `file_bytes`:
    of files and of the commands' output."""

    threads: int
    resident_bytes: int
    file_bytes: int
    cpu_s: float


class SandboxProcfs:
    """Access to one sandbox. Calls raise ProcessLookupError once it is gone."""

    def __init__(self, shell_pid_inside: int, shell_pid: int, descriptors: list[int], output_files: list[int]):
        """`shell_pid`: the shell's pid on the host. `descriptors`: open directories, in the order of DIRECTORIES.
        `output_files`: descriptors of what the commands print to; they belong to the caller."""
        self._shell_pid, self._shell = shell_pid, str(shell_pid_inside)
        self._protected = {INIT, self._shell}
        self.descriptors, self.output_files = descriptors, output_files
        self._proc, *self._file_systems = descriptors

    def pids(self) -> list[str]:
        """Pids inside of all processes, zombies included."""
        pids = [name for name in os.listdir(self._proc) if name.isdigit()]
        if INIT not in pids:
            raise ProcessLookupError("the sandbox has ended")
        return pids

    def usage(self, pids: list[str]) -> UsageSnapshot:
        """Usage by these processes and by files. CPU time includes that of children that were waited for."""
        threads = pages = ticks = 0
        for pid in pids:
            if stat := self._read(pid, "stat"):
                fields = _stat_fields(stat)
                ticks += sum(map(int, fields[11:15]))
                threads += int(fields[17])
                pages += int(fields[21])
        file_bytes = self.file_bytes() + self.output_bytes()
        return UsageSnapshot(threads, pages * PAGE_BYTES, file_bytes, ticks / CLOCK_TICKS_PER_S)

    def proportional_bytes(self) -> int:
        """Resident memory, with each shared page divided among its processes. Expensive: it walks all page tables."""
        total = 0
        for pid in self.pids():
            for line in self._read(pid, "smaps_rollup").splitlines():
                if line.startswith(b"Pss:"):
                    total += int(line.split()[1]) * 1024
        return total

    def output_bytes(self) -> int:
        """Size of the commands' output. It lies in memory."""
        return sum(os.fstat(descriptor).st_blocks for descriptor in self.output_files) * BLOCK_BYTES

    def file_bytes(self) -> int:
        """Size of the files written since the start. Their file systems lie in memory, so this is memory too."""
        total = 0
        for descriptor in self._file_systems:
            stat = os.fstatvfs(descriptor)
            total += (stat.f_blocks - stat.f_bfree) * stat.f_frsize + (stat.f_files - stat.f_ffree) * INODE_BYTES
        return total

    def capacity_bytes(self) -> int:
        """Capacity of the file system under the image's writable layer."""
        stat = os.fstatvfs(self._file_systems[0])
        return stat.f_blocks * stat.f_frsize

    def kill_processes(self, timeout_s: float) -> bool:
        """Kill everything but the shell and init. Returns False where that fails in time, or the shell died.

        All processes are stopped at once before the first is killed, because a fork bomb forks faster than processes
        can be signalled one after the other. kill(-1) reaches all that the sender sees except itself, and meanwhile
        the kernel lets no process fork.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                run_in_namespaces(self._shell_pid, PID, lambda: os.kill(-1, signal.SIGSTOP))
            except PermissionError as error:
                log.warning("the sandbox's processes were not stopped before the kill: %s", error)
            for pid in {*self.pids()} - self._protected:
                self._signal(pid, signal.SIGKILL)
            time.sleep(0.005)
            if not any(self._is_alive(pid) for pid in {*self.pids()} - self._protected):
                self._signal(self._shell, signal.SIGCONT)
                return self._is_alive(self._shell)
        return False

    def kill_sandbox(self) -> None:
        """Kill the sandbox. When a PID namespace's init dies, the kernel kills everything in it and allows no fork."""
        self._signal(INIT, signal.SIGKILL)

    def close(self) -> None:
        """Close the descriptors. Not repeatable."""
        for descriptor in self.descriptors:
            os.close(descriptor)

    def _is_alive(self, pid: str) -> bool:
        stat = self._read(pid, "stat")
        return bool(stat) and _stat_fields(stat)[0].decode() not in ENDED_STATES

    def _read(self, pid: str, file: str) -> bytes:
        """Content of a file of the process; empty where the process is gone."""
        try:
            descriptor = os.open(f"{pid}/{file}", os.O_RDONLY, dir_fd=self._proc)
        except OSError:
            return b""
        try:
            return os.read(descriptor, 4096)
        except OSError:
            return b""
        finally:
            os.close(descriptor)

    def _signal(self, pid: str, number: signal.Signals) -> None:
        try:
            descriptor = os.open(pid, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._proc)
        except OSError:
            return
        try:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _stat_fields(stat: bytes) -> list[bytes]:
    """Fields of /proc/PID/stat from the state on. The name before them may contain any character."""
    return stat[stat.rindex(b")") + 2 :].split()
