"""Two ways to shut down: drain the running sessions, or cancel them.

Invariant: queued sessions stay queued for the next start, and every long poll is answered before the server ends.
"""

import logging
import time

from agent_server.scheduling.dispatcher import STOP_GRACE_S, Dispatcher
from agent_server.scheduling.long_polls import LongPolls
from agent_server.scheduling.service import BackgroundService
from agent_server.store.store import Store

log = logging.getLogger(__name__)
POLL_S = 0.02


class Shutdown:
    """Each method admits no more sessions, and returns when the server may end."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        long_polls: LongPolls,
        service: BackgroundService,
        drain_timeout_s: float,
    ):
        self._store, self._dispatcher = store, dispatcher
        self._long_polls, self._service = long_polls, service
        self._drain_timeout_s = drain_timeout_s

    def drain(self) -> None:
        """Wait for the running sessions, at most the drain timeout. The next start adopts those that still run then."""
        self._dispatcher.draining = True
        log.info("draining: no new sessions, up to %g s for running ones", self._drain_timeout_s)
        self._await_idle(self._drain_timeout_s)
        if left := [row["id"] for row in self._store.list_active()]:
            log.info("left to the next start: %s", ", ".join(left))
        self._long_polls.close()

    def cancel_all(self) -> None:
        """Cancel the running sessions."""
        self._dispatcher.draining = True
        for row in self._store.list_active():
            self._store.request_cancel(row["id"])
        self._service.wake()
        self._await_idle(2 * STOP_GRACE_S + 1.0)
        self._long_polls.close()

    def _await_idle(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self._store.list_active() and time.monotonic() < deadline and self._service.alive:
            time.sleep(POLL_S)
