"""An alarm for rewards that change with load: a share of zeros or time-outs that grows when more sessions run.

A machine that is too busy times commands and tests out, and every such session still counts. So the latest sessions are held
against those before them, with how many ran and how busy the machine was.
Formula: two-proportion z-test, z = (p - q) / sqrt(r (1 - r) (1/n + 1/m)) with r the pooled share.
Invariant: it only watches; no reward and no session depends on it.
"""

import logging
import math
import os
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from agent_server.observability.events import ENDS
from client.wire import Status

log = logging.getLogger(__name__)
LATEST = 100  # sessions that are held against as many and more before them
BEFORE = 400
FEWEST = 50
Z = 4.0  # about once in 30,000 looks by chance
SIGNS = ("zero_reward", "time_out")
TIMEOUT_CODES = {"grader_timeout", "sandbox_start", "model_unreachable"}
OUT_OF_TIME = ("TimeExceeded",)


@dataclass(frozen=True, slots=True)
class Seen:
    """One ended session: which signs it shows, how many sessions ran then, and the machine's load average a core."""

    signs: frozenset[str]
    running: int
    load: float


@dataclass(frozen=True, slots=True)
class Drift:
    """A sign's share before and lately, and what changed with it."""

    sign: str
    before: float
    latest: float
    running_before: float
    running_latest: float
    load_before: float
    load_latest: float

    def __str__(self) -> str:
        return (
            f"the share of {self.sign} sessions went from {self.before:.0%} to {self.latest:.0%}, sessions at once from {self.running_before:.0f} to"
            f" {self.running_latest:.0f}, load a core from {self.load_before:.1f} to {self.load_latest:.1f}; if the trainer's policy did not change,"
            " lower the limits (PATCH /limits) or raise the time limits"
        )


class DriftAlarm:
    """`observe` takes the events of agent_server.observability.events. `shares` and `alarms`, by sign, are for the metrics."""

    def __init__(self) -> None:
        self._running: set[str] = set()
        self._latest: deque[Seen] = deque(maxlen=LATEST)
        self._before: deque[Seen] = deque(maxlen=BEFORE)
        self.shares = dict.fromkeys(SIGNS, 0.0)
        self.alarms = dict.fromkeys(SIGNS, False)

    def observe(self, event: dict[str, Any]) -> None:
        if event["name"] == "admitted":
            self._running.add(event["session_id"])
        running = len(self._running)
        if event["name"] in ENDS or event["name"] == "retried":
            self._running.discard(event["session_id"])
        if event["name"] not in (Status.COMPLETED, Status.FAILED) or event["mode"] != "train":
            return
        if len(self._latest) == LATEST:
            self._before.append(self._latest[0])
        self._latest.append(Seen(signs(event), running, os.getloadavg()[0] / (os.cpu_count() or 1)))
        found = {drift.sign: drift for drift in drifts(list(self._before), list(self._latest))}
        for sign in SIGNS:
            self.shares[sign] = share(self._latest, sign)
            if sign in found and not self.alarms[sign]:
                log.warning("drift: %s", found[sign])
            self.alarms[sign] = sign in found


def signs(event: dict[str, Any]) -> frozenset[str]:
    found = set()
    if event["name"] == Status.COMPLETED and not event.get("resolved", event.get("reward", 0.0) > 0.0):
        found.add("zero_reward")
    if (event.get("error") or {}).get("code") in TIMEOUT_CODES or event.get("agent_exit_status") in OUT_OF_TIME:
        found.add("time_out")
    return frozenset(found)


def share(seen: Collection[Seen], sign: str) -> float:
    return sum(sign in session.signs for session in seen) / len(seen) if seen else 0.0


def drifts(before: list[Seen], latest: list[Seen]) -> list[Drift]:
    """Signs whose share among the latest is larger than chance would make it. Pure."""
    if len(before) < FEWEST or len(latest) < FEWEST:
        return []
    found = []
    for sign in SIGNS:
        p, q = share(latest, sign), share(before, sign)
        pooled = (p * len(latest) + q * len(before)) / (len(latest) + len(before))
        spread = math.sqrt(pooled * (1 - pooled) * (1 / len(latest) + 1 / len(before)))
        if spread > 0 and (p - q) / spread > Z:
            means = [
                sum(getattr(session, of) for session in seen) / len(seen)
                for of in ("running", "load")
                for seen in (before, latest)
            ]
            found.append(Drift(sign, q, p, *means))
    return found
