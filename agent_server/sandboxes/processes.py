"""Reading and ending process trees by what /proc says, without waiting on anybody's pipe.

Invariant: only processes below a root that the caller owns are ever signalled.
"""

import ctypes
import os
import signal
import time
from dataclasses import dataclass

CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc: `start_ticks` since boot tells a process from a later one with the same pid."""

    pid: int
    parent: int
    state: str
    start_ticks: int


def read_process(pid: int) -> Process | None:
    """The process, or None where there is none with that pid."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            text = stat.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name stands in parentheses and may itself hold any character.
    fields = text[text.rindex(b")") + 2 :].split()
    return Process(pid, int(fields[1]), fields[0].decode(), int(fields[19]))


def namespace_pid(pid: int) -> int | None:
    """The number by which the process knows itself: that of its innermost PID namespace. None where there is none with that pid."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            return next(int(line.split()[-1]) for line in status if line.startswith(b"NSpid:"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def descendants(root: int) -> list[Process]:
    """Every live process below `root`, in no given order. An orphan inside a PID namespace hangs on that namespace's init."""
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
    """Now, in the unit of `start_ticks`. /proc counts in boot time, suspends included."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * CLOCK_TICKS_PER_S)


def kill_started_since(root: int, since_ticks: int, spare: frozenset[int]) -> None:
    """SIGKILL all below `root` that started at or after `since_ticks`, again and again until none is left.

    A fork bomb forks between two looks, so one pass is not enough; killing the youngest generation converges because
    a killed parent forks no more.
    """
    for _ in range(50):
        targets = [
            p.pid
            for p in descendants(root)
            if p.start_ticks >= since_ticks and p.pid not in spare and p.state not in "ZX"
        ]
        if not targets:
            return
        for pid in targets:
            kill(pid)
        time.sleep(0.002)


def kill(pid: int) -> None:
    """SIGKILL; a process that is gone already is fine."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def become_subreaper() -> None:
    """Make this process the parent of orphans below it, so that it can reap them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans() -> None:
    """Wait for every ended child that no Popen waits for any more. For a subreaper, once its own children are closed."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
