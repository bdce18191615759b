"""Drift alarm: a share of unresolved tasks or time-outs that grows, for instance with the load.

On an overloaded machine commands and tests time out, and such sessions still count. The alarm compares the latest
sessions with those before them, and reports the number of running sessions and the machine's load beside it.
Formula: two-proportion z-test, z = (p - q) / sqrt(r (1 - r) (1/n + 1/m)) with r the pooled share.
Invariant: read-only; no reward and no session depends on it.
"""

import logging
import math
import os
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from agent_server.observability.events import ENDS, Event
from client.wire import Status

log = logging.getLogger(__name__)
LATEST = 100  # the sessions compared
BEFORE = 400  # the sessions before them, at most
MIN_SESSIONS = 50  # of each, for a comparison
Z = 4.0  # by chance about one comparison in 30,000
SIGNS = ("unresolved", "time_out")
TIMEOUT_CODES = {"grader_timeout", "sandbox_start", "model_unreachable"}
OUT_OF_TIME = ("TimeExceeded",)


@dataclass(frozen=True, slots=True)
class EndedSession:
    """Signs of one ended session, the number of running sessions then, and the machine's load average per core."""

    signs: frozenset[str]
    running: int
    load: float


@dataclass(frozen=True, slots=True)
class Drift:
    """A sign whose share grew: shares, running sessions and load, before and latest."""

    sign: str
    before: float
    latest: float
    running_before: float
    running_latest: float
    load_before: float
    load_latest: float

    def __str__(self) -> str:
        return (
            f"the share of {self.sign} sessions went from {self.before:.0%} to {self.latest:.0%},"
            f" sessions at once from {self.running_before:.0f} to {self.running_latest:.0f},"
            f" load per core from {self.load_before:.1f} to {self.load_latest:.1f};"
            " if the trainer's policy did not change, lower the limits (PATCH /limits) or raise the time limits"
        )


class DriftAlarm:
    """Alarm over the event stream. `shares` and `alarms`: by sign, for the metrics."""

    def __init__(self) -> None:
        self._running: set[str] = set()
        self._latest: deque[EndedSession] = deque(maxlen=LATEST)
        self._before: deque[EndedSession] = deque(maxlen=BEFORE)
        self.shares = dict.fromkeys(SIGNS, 0.0)
        self.alarms = dict.fromkeys(SIGNS, False)

    def observe(self, event: Event) -> None:
        """Take the next event; a new alarm is logged once."""
        if event["name"] == "admitted":
            self._running.add(event["session_id"])
        running = len(self._running)
        if event["name"] in ENDS or event["name"] == "retried":
            self._running.discard(event["session_id"])
        if event["name"] not in (Status.COMPLETED, Status.FAILED) or event["mode"] != "train":
            return
        if len(self._latest) == LATEST:
            self._before.append(self._latest[0])
        self._latest.append(EndedSession(signs(event), running, os.getloadavg()[0] / (os.cpu_count() or 1)))
        found = {drift.sign: drift for drift in drifts(list(self._before), list(self._latest))}
        for sign in SIGNS:
            self.shares[sign] = share(self._latest, sign)
            if sign in found and not self.alarms[sign]:
                log.warning("drift: %s", found[sign])
            self.alarms[sign] = sign in found


def signs(event: Event) -> frozenset[str]:
    """Signs of a session, from its last event."""
    found = set()
    if event["name"] == Status.COMPLETED and not event.get("resolved", event.get("reward", 0.0) > 0.0):
        found.add("unresolved")
    if (event.get("error") or {}).get("code") in TIMEOUT_CODES or event.get("agent_exit_status") in OUT_OF_TIME:
        found.add("time_out")
    return frozenset(found)


def share(sessions: Collection[EndedSession], sign: str) -> float:
    """Share of the sessions with this sign; 0 of none."""
    return sum(sign in session.signs for session in sessions) / len(sessions) if sessions else 0.0


def drifts(before: list[EndedSession], latest: list[EndedSession]) -> list[Drift]:
    """Signs whose share grew by more than chance. Pure."""
    if len(before) < MIN_SESSIONS or len(latest) < MIN_SESSIONS:
        return []
    found = []
    for sign in SIGNS:
        p, q = share(latest, sign), share(before, sign)
        pooled = (p * len(latest) + q * len(before)) / (len(latest) + len(before))
        spread = math.sqrt(pooled * (1 - pooled) * (1 / len(latest) + 1 / len(before)))
        if spread > 0 and (p - q) / spread > Z:
            means = [
                sum(getattr(session, figure) for session in sessions) / len(sessions)
                for figure in ("running", "load")
                for sessions in (before, latest)
            ]
            found.append(Drift(sign, q, p, *means))
    return found
