"""Watchdog of one sandbox: a process that checks its limits ten times a second.

It is not a thread of the worker, because a thread needs the interpreter's lock: among a thousand processes of a fork
bomb, the worker that holds the lock may wait seconds for the CPU. The watchdog does one thing at a time, a check or a
request of the worker, so a command starts and ends between two checks, never within one.
Invariant: the watchdog ends with its worker and kills the sandbox then.
"""

import logging
import os
import select
import signal
import socket
import time
from contextlib import suppress

from agent_server.sandboxes.base import ResourceUsage
from agent_server.sandboxes.cgroups.cgroup import Cgroup
from agent_server.sandboxes.limits import LimitEnforcer, Limits
from agent_server.sandboxes.procfs import SandboxProcfs
from client.errors import SandboxDied

log = logging.getLogger(__name__)
CHECK_INTERVAL_S = 0.1
MAX_CPU_SHARE = 0.05  # of one core, however many processes there are to check
MESSAGE_BYTES = 64
COMMAND_STARTED, COMMAND_FINISHED, SANDBOX_LIMIT, USAGE = (
    b"started",
    b"finished",
    b"sandbox limit",
    b"usage",
)  # requests
NO_LIMIT = b"-"  # a reply must not be empty: that is the end of the connection


class Watchdog:
    """Handle of the worker. Calls raise SandboxDied when the watchdog is gone, so no sandbox runs without one."""

    def __init__(self, procfs: SandboxProcfs, limits: Limits, cgroup: Cgroup | None):
        self._procfs = procfs
        self._socket, other_end = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with other_end:
            self.pid = os.fork()
            if self.pid == 0:
                _run_watchdog(other_end, procfs, LimitEnforcer(procfs, limits, cgroup))

    def start_command(self) -> None:
        """Report a new command. Returns when no earlier command is being killed."""
        self._request(COMMAND_STARTED)

    def finish_command(self) -> str:
        """Report the end of the command. Returns the limit that ended it, or ""."""
        return self._request(COMMAND_FINISHED)

    def sandbox_limit(self) -> str:
        """The limit for which the sandbox was killed, or ""."""
        return self._request(SANDBOX_LIMIT)

    def resource_usage(self) -> ResourceUsage:
        """Usage as of now, or of the last check where the sandbox is gone."""
        cpu_s, peak_bytes = self._request(USAGE).split()
        return ResourceUsage(float(cpu_s), int(peak_bytes))

    def close(self) -> None:
        """Kill the watchdog and reap it. Not repeatable."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._socket.close()
        self._procfs.close()

    def _request(self, request: bytes) -> str:
        try:
            self._socket.sendall(request)
            reply = self._socket.recv(MESSAGE_BYTES)
        except OSError:
            reply = b""
        if not reply:
            raise SandboxDied("the sandbox's watchdog is gone")
        return reply.removeprefix(NO_LIMIT).decode()


def _run_watchdog(worker: socket.socket, procfs: SandboxProcfs, enforcer: LimitEnforcer) -> None:
    """Main function of the child. Never returns: the child must not continue in the worker's code."""
    try:
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        # The worker's pipes must close when the worker ends.
        _close_all_but({0, 1, 2, worker.fileno(), *procfs.descriptors})
        _raise_priority()
        _check_until_closed(worker, enforcer)
    except BaseException:
        log.exception("the sandbox's watchdog failed")
    procfs.kill_sandbox()
    os._exit(0)


def _check_until_closed(worker: socket.socket, enforcer: LimitEnforcer) -> None:
    """Check the limits and serve the worker's requests until the worker is gone."""
    next_check: float | None = time.monotonic()
    while True:
        timeout = None if next_check is None else max(0.0, next_check - time.monotonic())
        readable, _, _ = select.select([worker], [], [], timeout)
        if readable:
            request = worker.recv(MESSAGE_BYTES)
            if not request:
                return
            worker.sendall(_reply(request, enforcer).encode() or NO_LIMIT)
        if next_check is not None and time.monotonic() >= next_check:
            started = time.thread_time()
            try:
                limit = enforcer.check()
                next_check = time.monotonic() + max(CHECK_INTERVAL_S, (time.thread_time() - started) / MAX_CPU_SHARE)
                if limit:
                    enforcer.enforce(limit)
            except ProcessLookupError:
                next_check = None  # the sandbox is gone; the worker may still ask for the reason


def _reply(request: bytes, enforcer: LimitEnforcer) -> str:
    if request == USAGE:
        with suppress(ProcessLookupError):
            enforcer.check()
        return f"{enforcer.cpu_s} {enforcer.peak_bytes}"
    enforcer.enforce_kernel_events()
    if request == COMMAND_STARTED:
        enforcer.command_limit = ""
    if request == SANDBOX_LIMIT:  # sent after the sandbox died: the limit of its last command is the reason
        enforcer.sandbox_limit = enforcer.sandbox_limit or enforcer.command_limit
        return enforcer.sandbox_limit
    return enforcer.command_limit


def _close_all_but(descriptors: set[int]) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in descriptors:
            with suppress(OSError):  # the descriptor of the listing itself is closed already
                os.close(number)


def _raise_priority() -> None:
    """Schedule this process before all ordinary ones."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except PermissionError:
        log.info("no right to a real-time priority (CAP_SYS_NICE); stopping a fork bomb may take longer")
