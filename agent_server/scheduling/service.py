"""Start, readiness and stop of the server's parts.

Invariant: a stop ends the loop and the fork server, never a worker. A running session goes on and is adopted by the
next start.
"""

import logging

from agent_server.config import Settings
from agent_server.executors.base import Executor
from agent_server.private_files import make_private_folder
from agent_server.sandboxes.orphans import reclaim_orphans
from agent_server.scheduling.dispatcher import Dispatcher
from agent_server.scheduling.inbox import Inbox
from agent_server.scheduling.long_polls import LongPolls
from agent_server.scheduling.loop import Loop
from agent_server.store.store import Store
from agent_server.worker.notification import notify

log = logging.getLogger(__name__)


class BackgroundService:
    """Starts and stops the parts in order."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        executor: Executor,
        dispatcher: Dispatcher,
        long_polls: LongPolls,
        inbox: Inbox,
        loop: Loop,
    ):
        self._settings, self._store, self._executor = settings, store, executor
        self._dispatcher, self._long_polls = dispatcher, long_polls
        self._inbox, self._loop = inbox, loop

    def start(self) -> None:
        """Adopt the running workers of an earlier server, then start the loop. Raises ConfigError, StorageError."""
        settings = self._settings
        for folder in (settings.scratch_dir, settings.semaphore_dir):
            folder.mkdir(parents=True, exist_ok=True)
        for folder in (settings.trajectory_dir, settings.log_dir):
            make_private_folder(folder)
        self._inbox.open()
        self._store.set_limits(settings.limits)
        self._dispatcher.adopt()
        active = {f"{row['id']}.{row['attempt']}" for row in self._store.list_active()}
        if reclaimed := reclaim_orphans(settings, active=active):
            log.warning("ended what killed workers had left of %s", ", ".join(reclaimed))
        self._executor.start()
        self._loop.start()

    @property
    def alive(self) -> bool:
        """The loop runs."""
        return self._loop.alive

    @property
    def draining(self) -> bool:
        """No session is admitted any more."""
        return self._dispatcher.draining

    @property
    def ready(self) -> bool:
        """Sessions are accepted and run."""
        return self.alive and self._executor.ready and not self.draining

    def wake(self) -> None:
        """Run the next pass of the loop soon."""
        notify(self._settings.notify_address)

    def stop(self) -> None:
        """End the loop and the fork server; workers go on."""
        if not self.alive:
            return
        self._loop.request_stop()
        self._long_polls.close()
        self.wake()
        self._loop.join(timeout_s=5.0)
        self._executor.stop()
        self._inbox.close()
