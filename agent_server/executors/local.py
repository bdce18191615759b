"""Workers as local processes, forked from a preloaded fork server, watched and ended by pid.

Invariant: a pid is only ever signalled together with the start time that identifies its process.
"""

import os
import select
import signal
from contextlib import suppress

from agent_server.config import Settings
from agent_server.executors.base import Launch
from agent_server.executors.launcher import Launcher
from agent_server.sandboxes.processes import read_process
from agent_server.worker.job import Job
from agent_server.worker.notification import notify


class LocalExecutor:
    """Executor of workers on this machine."""

    def __init__(self, settings: Settings):
        self._launcher = Launcher(settings, on_change=lambda: notify(settings.notify_address))
        self._watched: dict[int, int] = {}  # pid -> pidfd

    def start(self) -> None:
        """See Executor.start."""
        self._launcher.start()

    def stop(self) -> None:
        """End the fork server, also while it starts. Workers go on."""
        self._launcher.stop()

    @property
    def ready(self) -> bool:
        """The fork server runs and has preloaded."""
        return self._launcher.ready

    def launch(self, job: Job) -> None:
        """See Executor.launch."""
        self._launcher.submit(job)

    def launched(self) -> list[Launch]:
        """See Executor.launched."""
        return self._launcher.take_results()

    def watch(self, pid: int, start_ticks: int) -> bool:
        """Watch a worker of this or an earlier server. False where that process is gone. Raises OSError."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        process = read_process(pid)
        if process is None or process.start_ticks != start_ticks:
            os.close(descriptor)
            return False
        self._watched[pid] = descriptor
        return True

    def ended(self) -> list[int]:
        """Pids of watched workers that have ended since the last call."""
        poll = select.poll()
        pids = {descriptor: pid for pid, descriptor in self._watched.items()}
        for descriptor in pids:
            poll.register(descriptor, select.POLLIN)
        gone = [pids[descriptor] for descriptor, _ in poll.poll(0)]
        for pid in gone:
            os.close(self._watched.pop(pid))
        return gone

    @staticmethod
    def signal(pid: int, start_ticks: int, number: signal.Signals) -> None:
        """Signal a worker; no error where it is gone."""
        process = read_process(pid)
        if process and process.start_ticks == start_ticks:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    @staticmethod
    def kill_group(pid: int) -> None:
        """Kill the processes that an ended worker left behind.

        A worker leads a process group of its own, and the group's id is not reused while a member lives.
        """
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
