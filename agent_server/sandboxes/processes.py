"""Process trees on the host, read from /proc and killed.

Invariant: only processes below a root that the caller owns are signalled.
"""

import ctypes
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER = 36
ENDED_STATES = "ZX"  # zombie, dead
KILL_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class Process:
    """Entry of /proc. `start_ticks` since boot distinguishes a process from a later one with the same pid."""

    pid: int
    parent: int
    state: str
    start_ticks: int

    @property
    def is_alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        return self.state not in ENDED_STATES


def read_process(pid: int) -> Process | None:
    """The process with that pid, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            text = stat.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name stands in parentheses and may contain any character.
    fields = text[text.rindex(b")") + 2 :].split()
    return Process(pid, int(fields[1]), fields[0].decode(), int(fields[19]))


def namespace_pid(pid: int) -> int | None:
    """The process's pid in its innermost PID namespace, or None where there is no such process."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            return next(int(line.split()[-1]) for line in status if line.startswith(b"NSpid:"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def descendants(root: int) -> list[Process]:
    """All processes below `root`, in any order, zombies included. Orphans in a PID namespace are below its init."""
    children: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := read_process(int(name))):
            children.setdefault(process.parent, []).append(process)
    found, frontier = [], [root]
    while frontier:
        below = children.get(frontier.pop(), [])
        found += below
        frontier += [process.pid for process in below]
    return found


def ticks_now() -> int:
    """Current time in the unit of `start_ticks`. /proc counts in boot time, suspends included."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * CLOCK_TICKS_PER_S)


def kill_started_since(root: int, start_ticks: int, protected: frozenset[int]) -> None:
    """SIGKILL the processes below `root` that started at `start_ticks` or later, except those with `protected` pids.

    A fork bomb forks between two scans, so the kill repeats until no process is left. It converges, because a killed
    parent does not fork any more.
    """
    for _ in range(KILL_ROUNDS):
        targets = [
            process.pid
            for process in descendants(root)
            if process.start_ticks >= start_ticks and process.pid not in protected and process.is_alive
        ]
        if not targets:
            return
        for pid in targets:
            kill(pid)
        time.sleep(0.002)


def kill(pid: int) -> None:
    """Send SIGKILL. A process that is gone is no error."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def become_subreaper() -> None:
    """Make this process the parent of orphans below it, so that it can reap them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans() -> None:
    """Reap every ended child. Only for a subreaper whose own children (Popen) are closed."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
