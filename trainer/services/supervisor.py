"""Keeps one command's whole process tree: started by `trainer.services.service.Service`, run by path, standard library only.

    python -I -S supervisor.py PARENT_PID GRACE_S COMMAND...

Invariant: when this process ends, nothing that COMMAND started is left, however it detached itself: orphans are adopted
(child subreaper) and killed. It ends when COMMAND does, on SIGTERM or SIGINT, and when its parent dies (PR_SET_PDEATHSIG).
Its exit status is COMMAND's, or 128 + signal number.
"""

import ctypes
import os
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
POLL_S = 0.01
SETTLE_S = 1.0


def main(parent_pid: int, grace_s: float, command: list[str]) -> int:
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    # Blocked, not handled: sigtimedwait takes them in the loop, so none is lost between two looks.
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:  # it died before PDEATHSIG was armed
        return 128 + signal.SIGTERM
    supervisor_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(command, supervisor_pid, prctl, signals)
    status = None
    deadline = None
    while status is None and (deadline is None or time.monotonic() < deadline):
        # With a deadline a look every 50 ms; without one every second, in case a SIGCHLD was merged with another.
        got = signal.sigtimedwait(signals, 0.05 if deadline else 1.0)
        if got is not None and got.si_signo != signal.SIGCHLD and deadline is None:
            deadline = time.monotonic() + grace_s
            os.kill(pid, signal.SIGTERM)  # not reaped yet, so the pid is still ours
        status = _reap(pid)
    # Servers leave helpers that tidy up behind them (multiprocessing's unlinks their shared memory): let those end.
    deadline = time.monotonic() + (0 if status is None else SETTLE_S)
    while _children() and time.monotonic() < deadline:
        signal.sigtimedwait({signal.SIGCHLD}, 0.05)
        reaped = _reap(pid)
        status = reaped if status is None else status
    while children := _children():
        for child in children:
            os.kill(child, signal.SIGKILL)  # a child of ours keeps its pid until _reap
        reaped = _reap(pid)
        status = reaped if status is None else status
        time.sleep(POLL_S)
    return status if status is not None else 128 + signal.SIGKILL


def _become(command: list[str], supervisor_pid: int, prctl, signals: set) -> None:
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
    """Reap every ended child; the exit code of `pid` when it was among them."""
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
    """Direct children, adopted ones included. Killing them hands their own children to us, so a loop empties the tree."""
    me = os.getpid()
    with open(f"/proc/{me}/task/{me}/children") as file:
        return [int(pid) for pid in file.read().split()]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
