"""Acting from within a sandbox's namespaces: a forked child enters them, does one thing, and ends.

A child, because a process with threads may not enter a user namespace, and because nobody moves into a PID namespace but
by being born there. It executes no program and leaves the mounts alone, so it needs nothing of the image; a sandbox's
processes have no capabilities, so they cannot look into it.
Invariant: the caller stays where it is.
"""

import ctypes
import os
from collections.abc import Callable

USER, PID, NET = 0x10000000, 0x20000000, 0x40000000  # CLONE_NEW... of sched.h
_libc = ctypes.CDLL(None, use_errno=True)


def run_in_namespaces(pid: int, namespaces: int, act: Callable[[], None]) -> None:
    """Call `act` in a child that has entered these namespaces of process `pid`. Raises PermissionError where it could not."""
    child = os.fork()
    if child == 0:
        _as_child(lambda: _enter(pid, namespaces, act))
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise PermissionError(
            f"the namespaces of process {pid} cannot be entered: the sandbox is gone, or this needs root or a sandbox in a user namespace"
        )


def _enter(pid: int, namespaces: int, act: Callable[[], None]) -> None:
    if not os.path.samestat(os.stat(f"/proc/{pid}/ns/user"), os.stat("/proc/self/ns/user")):
        namespaces |= USER
    if _libc.setns(os.pidfd_open(pid), namespaces) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    if not namespaces & PID:
        return act()
    born_inside = os.fork()
    if born_inside == 0:
        if os.getppid() != 0:  # a parent in the same namespace has a number: this is not the sandbox's
            os._exit(1)
        _as_child(act)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(born_inside, 0)[1]) & 255)


def _as_child(act: Callable[[], None]) -> None:
    """Never returns: a child must not run on in its parent's code."""
    try:
        act()
    except BaseException:
        os._exit(1)
    os._exit(0)
