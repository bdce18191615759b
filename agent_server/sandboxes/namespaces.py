"""Runs functions inside a sandbox's namespaces, each in a forked child.

A child is needed because a process with threads may not enter a user namespace, and because a process is in a PID
namespace only if it was born there. The child executes no program and keeps its mounts, so it needs nothing of the
image. The sandbox's processes have no capabilities, so they cannot inspect it.
Invariant: the caller's own namespaces do not change.
"""

import ctypes
import os
from collections.abc import Callable

USER, PID, NET = 0x10000000, 0x20000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET of sched.h
_libc = ctypes.CDLL(None, use_errno=True)


def run_in_namespaces(pid: int, namespaces: int, function: Callable[[], None]) -> None:
    """Call `function` in a child that is in these namespaces (PID | NET) of process `pid`. Raises PermissionError."""
    child = os.fork()
    if child == 0:
        _run_and_exit(lambda: _enter_and_run(pid, namespaces, function))
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise PermissionError(
            f"the namespaces of process {pid} cannot be entered; "
            "the sandbox must be running, and this needs root or a sandbox in a user namespace"
        )


def _enter_and_run(pid: int, namespaces: int, function: Callable[[], None]) -> None:
    if not os.path.samestat(os.stat(f"/proc/{pid}/ns/user"), os.stat("/proc/self/ns/user")):
        namespaces |= USER
    if _libc.setns(os.pidfd_open(pid), namespaces) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    if not namespaces & PID:
        return function()
    born_inside = os.fork()
    if born_inside == 0:
        if os.getppid() != 0:  # a visible parent is in the same namespace, so this is not the sandbox's
            os._exit(1)
        _run_and_exit(function)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(born_inside, 0)[1]) & 255)


def _run_and_exit(function: Callable[[], None]) -> None:
    """Never returns: a child must not continue in its parent's code."""
    try:
        function()
    except BaseException:
        os._exit(1)
    os._exit(0)
