"""Supervisor of one command's process tree. Started by `trainer.services.service.Service`; standard library only.

    python -I -S supervisor.py PARENT_PID GRACE_S COMMAND...

Invariant: when this process ends, no descendant of COMMAND is left, however it detached itself. Orphans are adopted
(child subreaper) and killed. It ends when COMMAND ends, on SIGTERM or SIGINT, and when its parent dies
(PR_SET_PDEATHSIG). Its exit status is COMMAND's, or 128 + signal number.
"""

import ctypes
import os
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
POLL_S = 0.01
ORPHAN_GRACE_S = 1.0


def main(parent_pid: int, grace_s: float, command: list[str]) -> int:
    """Run `command` to its end. Returns the exit status; `grace_s` is the time between SIGTERM and SIGKILL."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    # Blocked, not handled: sigtimedwait takes them in the loop, so none is lost between two waits.
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:  # the parent died before PDEATHSIG was armed
        return 128 + signal.SIGTERM
    supervisor_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        _exec_command(command, supervisor_pid, prctl, signals)
    status = None
    deadline = None
    while status is None and (deadline is None or time.monotonic() < deadline):
        # Every 50 ms with a deadline; every second without one, in case a SIGCHLD was merged with another.
        received = signal.sigtimedwait(signals, 0.05 if deadline else 1.0)
        if received is not None and received.si_signo != signal.SIGCHLD and deadline is None:
            deadline = time.monotonic() + grace_s
            os.kill(pid, signal.SIGTERM)  # not reaped yet, so the kernel cannot have reused the pid
        status = _reap(pid)
    # A server may leave processes that clean up after it (multiprocessing's resource tracker): let them finish.
    deadline = time.monotonic() + (0 if status is None else ORPHAN_GRACE_S)
    while _children() and time.monotonic() < deadline:
        signal.sigtimedwait({signal.SIGCHLD}, 0.05)
        reaped = _reap(pid)
        status = reaped if status is None else status
    while children := _children():
        for child in children:
            os.kill(child, signal.SIGKILL)  # a child keeps its pid until _reap
        reaped = _reap(pid)
        status = reaped if status is None else status
        time.sleep(POLL_S)
    return status if status is not None else 128 + signal.SIGKILL


def _exec_command(command: list[str], supervisor_pid: int, prctl, signals: set) -> None:
    """Replace the forked child by `command`, in a session of its own, killed by the kernel if the supervisor dies."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor_pid:
        os._exit(128 + signal.SIGKILL)
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)


def _reap(pid: int) -> int | None:
    """Reap every child that has ended. Returns the exit code of `pid` if it was among them."""
    code = None
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if ended == 0:
            return code
        if ended == pid:
            exit_code = os.waitstatus_to_exitcode(status)
            code = exit_code if exit_code >= 0 else 128 - exit_code


def _children() -> list[int]:
    """Direct children, adopted ones included. Killing one makes its children ours, so a loop empties the tree."""
    own_pid = os.getpid()
    with open(f"/proc/{own_pid}/task/{own_pid}/children") as file:
        return [int(pid) for pid in file.read().split()]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
