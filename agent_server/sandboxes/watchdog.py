"""The process that watches one sandbox: ten looks a second, and it ends what is over a limit.

A process and not a thread of the worker: a thread needs the interpreter's lock, and among a thousand processes of a fork
bomb the worker that holds it may wait seconds for its turn. Looks and the worker's questions come one after the other, so a
command begins and ends between two looks, never within one.
Invariant: it ends with its worker, and then the sandbox ends too.
"""

import logging
import os
import select
import signal
import socket
import time

from agent_server.sandboxes.base import ResourceUsage
from agent_server.sandboxes.cgroups.cgroup import Cgroup
from agent_server.sandboxes.limits import LimitEnforcer, Limits
from agent_server.sandboxes.procfs import SandboxProcfs
from client.errors import SandboxDied

log = logging.getLogger(__name__)
LOOK_S = 0.1
LOOK_SHARE = 0.05  # of one core at most, however much there is to look at
BEGINS, ENDED, ENDED_BY, USED = b"begins", b"ended", b"ended by", b"used"
NO_LIMIT = b"-"


class Watchdog:
    """The worker's side. Calls raise SandboxDied when the watchdog is gone: no sandbox runs unwatched."""

    def __init__(self, inside: SandboxProcfs, limits: Limits, cgroup: Cgroup | None):
        self._inside = inside
        self._ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            self.pid = os.fork()
            if self.pid == 0:
                _be_watchdog(theirs, inside, LimitEnforcer(inside, limits, cgroup))

    def command_begins(self) -> None:
        """Returns when nothing of an earlier command is being ended any more."""
        self._ask(BEGINS)

    def command_ended(self) -> str:
        """The limit that ended it, or ""."""
        return self._ask(ENDED)

    def ended_by(self) -> str:
        """The limit that ended the sandbox, or ""."""
        return self._ask(ENDED_BY)

    def resource_usage(self) -> ResourceUsage:
        """As of now, or as last seen where the sandbox has ended."""
        cpu_s, peak_bytes = self._ask(USED).split()
        return ResourceUsage(float(cpu_s), int(peak_bytes))

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._ours.close()
        self._inside.close()

    def _ask(self, question: bytes) -> str:
        try:
            self._ours.sendall(question)
            answer = self._ours.recv(64)
        except OSError:
            answer = b""
        if not answer:
            raise SandboxDied("the sandbox's watchdog is gone")
        return answer.removeprefix(NO_LIMIT).decode()


def _be_watchdog(worker: socket.socket, inside: SandboxProcfs, judge: LimitEnforcer) -> None:
    """Never returns: the child must not run on in the worker's code."""
    try:
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        _keep_open(
            {0, 1, 2, worker.fileno(), *inside.descriptors}
        )  # the worker's pipes must close when the worker ends
        _come_first()
        _watch(worker, judge)
    except BaseException:
        log.exception("the sandbox's watchdog failed")
    inside.end()
    os._exit(0)


def _watch(worker: socket.socket, judge: LimitEnforcer) -> None:
    """Until the worker has gone."""
    next_look: float | None = time.monotonic()
    while True:
        ready, _, _ = select.select(
            [worker], [], [], None if next_look is None else max(0.0, next_look - time.monotonic())
        )
        if ready:
            question = worker.recv(64)
            if not question:
                return
            worker.sendall(_answer(question, judge).encode() or NO_LIMIT)
        if next_look is not None and time.monotonic() >= next_look:
            started = time.thread_time()
            try:
                limit = judge.over()
                next_look = time.monotonic() + max(LOOK_S, (time.thread_time() - started) / LOOK_SHARE)
                if limit:
                    judge.end(limit)
            except ProcessLookupError:
                next_look = None  # the sandbox is gone; what ended it may still be asked


def _answer(question: bytes, judge: LimitEnforcer) -> str:
    if question == USED:
        try:
            judge.over()
        except ProcessLookupError:
            pass
        return f"{judge.cpu_s} {judge.peak_bytes}"
    judge.enforce_kernel_events()
    if question == BEGINS:
        judge.exceeded = ""
    if question == ENDED_BY:  # asked once it has died: what its last command exceeded is why
        judge.ended_by = judge.ended_by or judge.exceeded
        return judge.ended_by
    return judge.exceeded


def _keep_open(descriptors: set[int]) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in descriptors:
            try:
                os.close(number)
            except OSError:
                pass  # the listing's own


def _come_first() -> None:
    """Let this process run before all ordinary ones."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except PermissionError:
        log.info("no right to a real-time priority (CAP_SYS_NICE); a fork bomb may then take longer to stop")
