"""Runs functions inside a sandbox's namespaces or file system, each in a forked child.

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
    if not _succeeds(lambda: _enter_and_run(pid, namespaces, function)):
        raise PermissionError(
            f"the namespaces of process {pid} cannot be entered; "
            "the sandbox must be running, and this needs root or a sandbox in a user namespace"
        )


def run_in_root(pid: int, function: Callable[[], None]) -> None:
    """Call `function` in a child whose root directory is that of process `pid`, with the caller's privileges. It must
    import nothing. Raises PermissionError where that is not possible, or the function fails."""
    if not _succeeds(lambda: _change_root_and_run(pid, function)):
        raise PermissionError(
            f"the file system of process {pid} cannot be entered or changed; "
            "the sandbox must be running, and this needs root or a sandbox in a user namespace"
        )


def shares_user_namespace(pid: int) -> bool:
    """Whether process `pid` is in this process's user namespace, which nobody can enter a second time."""
    return os.path.samestat(os.stat(f"/proc/{pid}/ns/user"), os.stat("/proc/self/ns/user"))


def _succeeds(function: Callable[[], None]) -> bool:
    """Whether the function returns, in a forked child."""
    child = os.fork()
    if child == 0:
        _run_and_exit(function)
    _, status = os.waitpid(child, 0)
    return status == 0


def _change_root_and_run(pid: int, function: Callable[[], None]) -> None:
    root = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY)
    if not shares_user_namespace(pid) and _libc.setns(os.pidfd_open(pid), USER) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.fchdir(root)
    os.chroot(".")
    function()


def _enter_and_run(pid: int, namespaces: int, function: Callable[[], None]) -> None:
    if not shares_user_namespace(pid):
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
