"""What goes on inside a sandbox, seen from the host: its processes, its memory, its files, its CPU time.

Read through descriptors of the sandbox's own /proc and tmpfs. That /proc lists the sandbox's processes and no others, so
a look costs what the sandbox runs, not what the node runs; and a descriptor needs no path through mounts that a host
process may not enter (FUSE, user namespaces).
Invariant: a signal goes to the process whose directory was opened, so it cannot reach one outside.
"""

import logging
import os
import signal
import time
from dataclasses import dataclass

from agent_server.sandboxes.namespaces import PID, run_in_namespaces
from agent_server.sandboxes.processes import CLOCK_TICKS_PER_S

log = logging.getLogger(__name__)
DIRECTORIES = ("/proc", "/tmp", "/dev/shm")  # /tmp shares its tmpfs with the writable layer over the image
INIT = "1"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
INODE_BYTES = 1024  # about what the kernel keeps for an empty file


@dataclass(frozen=True, slots=True)
class Usage:
    """`resident_bytes` is the sum over processes: shared pages count once for each, so it is an upper bound."""

    threads: int
    resident_bytes: int
    files_bytes: int
    cpu_s: float


class SandboxProcfs:
    """Of the sandbox whose shell is process `shell` there and `host_pid` here, and whose DIRECTORIES are open as `descriptors`.
    Calls raise ProcessLookupError once the sandbox is gone."""

    def __init__(self, shell: int, host_pid: int, descriptors: list[int]):
        self._host_pid, self._shell = host_pid, str(shell)
        self._keep = {INIT, self._shell}
        self.descriptors = descriptors
        self._proc, *self._file_systems = descriptors

    def pids(self) -> list[str]:
        """Of all processes inside, ended ones that nobody waited for included."""
        found = [name for name in os.listdir(self._proc) if name.isdigit()]
        if INIT not in found:
            raise ProcessLookupError("the sandbox has ended")
        return found

    def usage(self, pids: list[str]) -> Usage:
        """Of these processes, and of the files in memory. CPU time includes that of children that were waited for."""
        threads = pages = ticks = 0
        for pid in pids:
            if stat := self._read(pid, "stat"):
                fields = stat[stat.rindex(b")") + 2 :].split()
                ticks += sum(map(int, fields[11:15]))
                threads += int(fields[17])
                pages += int(fields[21])
        return Usage(threads, pages * PAGE_BYTES, self.files_bytes(), ticks / CLOCK_TICKS_PER_S)

    def proportional_bytes(self) -> int:
        """Resident memory with every shared page divided among those that share it. Costs a walk over all page tables."""
        total = 0
        for pid in self.pids():
            for line in self._read(pid, "smaps_rollup").splitlines():
                if line.startswith(b"Pss:"):
                    total += int(line.split()[1]) * 1024
        return total

    def files_bytes(self) -> int:
        """What was written since the start: file systems that live in memory, so this is memory too."""
        used = 0
        for descriptor in self._file_systems:
            of = os.fstatvfs(descriptor)
            used += (of.f_blocks - of.f_bfree) * of.f_frsize + (of.f_files - of.f_ffree) * INODE_BYTES
        return used

    def capacity_bytes(self) -> int:
        """What the file system under the image's writable layer can hold."""
        of = os.fstatvfs(self._file_systems[0])
        return of.f_blocks * of.f_frsize

    def end_processes(self, within_s: float) -> bool:
        """End everything but the shell and init. False where something still lives after that time, or the shell does not.

        All are frozen at once before the first is killed, as a fork bomb forks faster than one process after another can
        be signalled. The kernel signals all that a sender sees, itself excepted, and lets nobody fork meanwhile.
        """
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            try:
                run_in_namespaces(self._host_pid, PID, lambda: os.kill(-1, signal.SIGSTOP))
            except PermissionError as refused:
                log.warning("nothing was frozen: %s", refused)  # killing alone ends all but the fastest
            for pid in {*self.pids()} - self._keep:
                self._signal(pid, signal.SIGKILL)
            time.sleep(0.005)
            if not any(self._lives(pid) for pid in {*self.pids()} - self._keep):
                self._signal(self._shell, signal.SIGCONT)
                return self._lives(self._shell)
        return False

    def end(self) -> None:
        """End the sandbox. When a PID namespace's init dies, the kernel lets nothing in it fork and kills all of it."""
        self._signal(INIT, signal.SIGKILL)

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)

    def _lives(self, pid: str) -> bool:
        stat = self._read(pid, "stat")
        return bool(stat) and stat[stat.rindex(b")") + 2 :][:1] not in b"ZX"

    def _read(self, pid: str, file: str) -> bytes:
        """Empty where the process has ended."""
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
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(descriptor)
