"""Watchdog of one sandbox: a process that checks its limits up to ten times a second.

A thread would share the GIL with the worker, which a fork bomb can keep off the CPU for seconds. The watchdog is
single-threaded: it runs either a check or a request of the worker. So a command starts and ends between two checks.
Checks that cost much are further apart.
Invariant: the watchdog ends with its worker and kills the sandbox then; the sandbox ends with its watchdog.
"""

import logging
import os
import select
import signal
import socket
import threading
import time
from contextlib import suppress
from enum import StrEnum, auto

from agent_server.sandboxes.base import ResourceUsage
from agent_server.sandboxes.cgroups.cgroup import Cgroup
from agent_server.sandboxes.limits import LimitEnforcer, Limits
from agent_server.sandboxes.procfs import SandboxProcfs
from client.errors import SandboxDied

log = logging.getLogger(__name__)
CHECK_INTERVAL_S = 0.1
MAX_CPU_SHARE = 0.05  # of one core, however many processes there are to check
MESSAGE_BYTES = 64
NO_LIMIT = b"-"  # a reply must not be empty: that is the end of the connection


class Request(StrEnum):
    """Requests of the worker. Each has one reply."""

    COMMAND_STARTED = auto()
    COMMAND_FINISHED = auto()
    SANDBOX_DIED = auto()
    USAGE = auto()


class Watchdog:
    """The worker's connection to its sandbox's watchdog.

    Calls raise SandboxDied when the watchdog is gone, so no sandbox runs without one.
    """

    def __init__(self, pid: int, connection: socket.socket, procfs: SandboxProcfs):
        self.pid = pid
        self._socket, self._procfs = connection, procfs
        self._closing = False
        self._pidfd = os.pidfd_open(pid)
        # Nothing in the worker waits for the watchdog while a command runs or the agent's model works.
        self._thread = threading.Thread(target=self._end_sandbox_with_watchdog, name="watchdog", daemon=True)
        self._thread.start()

    @classmethod
    def start(cls, procfs: SandboxProcfs, limits: Limits, cgroup: Cgroup | None) -> "Watchdog":
        """Fork a watchdog. `close` closes the descriptors of `procfs`, too."""
        connection, other_end = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with other_end:
            pid = os.fork()
            if pid == 0:
                _run_watchdog(other_end, procfs, LimitEnforcer(procfs, limits, cgroup))
        return cls(pid, connection, procfs)

    def start_command(self) -> None:
        """Report a new command. Returns when no earlier command is being killed."""
        self._request(Request.COMMAND_STARTED)

    def finish_command(self) -> str:
        """Report the end of the command. Returns the limit that ended it, or ""."""
        return self._request(Request.COMMAND_FINISHED)

    def report_death(self) -> str:
        """Report that the sandbox died. Returns the limit for which it was killed, or ""."""
        return self._request(Request.SANDBOX_DIED)

    def resource_usage(self) -> ResourceUsage:
        """Usage as of now, or of the last check where the sandbox is gone."""
        fields = self._request(Request.USAGE).split()
        while len(fields) != 2:  # the reply to a request whose caller was interrupted, by the end of its time say
            fields = self._receive().split()
        return ResourceUsage(float(fields[0]), int(fields[1]))

    def close(self) -> None:
        """Kill the watchdog and reap it. Not repeatable."""
        self._closing = True
        os.kill(self.pid, signal.SIGKILL)
        self._thread.join()
        os.waitpid(self.pid, 0)
        os.close(self._pidfd)
        self._socket.close()
        self._procfs.close()

    def _end_sandbox_with_watchdog(self) -> None:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        poll.poll()
        if not self._closing:
            log.error("the sandbox's watchdog is gone; without its limits the sandbox is ended")
            self._procfs.kill_sandbox()

    def _request(self, request: Request) -> str:
        with suppress(OSError):  # then there is no reply either
            self._socket.sendall(request.encode())
        return self._receive()

    def _receive(self) -> str:
        try:
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
        _close_all_but({0, 1, 2, worker.fileno(), *procfs.descriptors, *procfs.output_files})
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
            worker.sendall(_reply(Request(request.decode()), enforcer).encode() or NO_LIMIT)
        if next_check is not None and time.monotonic() >= next_check:
            started = time.thread_time()
            try:
                limit = enforcer.check()
                next_check = time.monotonic() + max(CHECK_INTERVAL_S, (time.thread_time() - started) / MAX_CPU_SHARE)
                if limit:
                    enforcer.enforce(limit)
            except ProcessLookupError:
                next_check = None  # the sandbox is gone; the worker may still ask for the reason


def _reply(request: Request, enforcer: LimitEnforcer) -> str:
    if request == Request.USAGE:
        with suppress(ProcessLookupError):
            enforcer.check()
        return f"{enforcer.cpu_s} {enforcer.peak_bytes}"
    enforcer.enforce_kernel_events()
    if request == Request.COMMAND_STARTED:
        enforcer.command_limit = ""
    if request == Request.SANDBOX_DIED:
        # Where no limit killed the sandbox itself, the limit of its last command is the reason, now and later.
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
