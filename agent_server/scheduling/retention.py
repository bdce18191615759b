"""Retention: drops expired records, leases and files, and detaches leaked loop devices.

Invariant: what is younger than its retention time stays. So does every record until clients have had time to find
the server after a restart: one that ended meanwhile may be older than its retention time, and nobody could ask.
"""

import logging
import math
import os
import time

from agent_server.config import Settings
from agent_server.sandboxes.loop_devices import LoopDeviceSweeper
from agent_server.store.store import Store
from client.api import OUTAGE_S

log = logging.getLogger(__name__)
SWEEP_S = 30.0


class Retention:
    """Sweeps of one server. The retention times are settings."""

    def __init__(self, settings: Settings, store: Store):
        self._settings, self._store = settings, store
        self._loop_devices = LoopDeviceSweeper(settings.sif_dir)
        self._interval_s = min(SWEEP_S, settings.record_retention_s / 2, settings.lease_timeout_s / 2)
        self._due = 0.0
        self._records_from = time.monotonic() + min(settings.record_retention_s, OUTAGE_S)

    def sweep(self) -> float:
        """Sweep where it is due. Returns the seconds until the next time. Raises StorageError."""
        now = time.monotonic()
        if now < self._due:
            return self._due - now
        self._due = now + self._interval_s
        self._drop_records()
        self._loop_devices.sweep()
        self._drop_files()
        return self._interval_s

    def _drop_records(self) -> None:
        may_drop = time.monotonic() >= self._records_from
        dropped = self._store.expire(
            record_s=self._settings.record_retention_s if may_drop else math.inf,
            lease_idle_s=self._settings.lease_timeout_s,
            lease_s=self._settings.file_retention_s,
        )
        if dropped:
            log.info("%d records expired", dropped)

    def _drop_files(self) -> None:
        before = time.time() - self._settings.file_retention_s
        for folder in (self._settings.trajectory_dir, self._settings.log_dir):
            for entry in os.scandir(folder):
                if entry.stat().st_mtime < before:
                    os.unlink(entry.path)
