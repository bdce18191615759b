"""Prometheus metrics: counters from the event stream, gauges read at each scrape.

Invariant: no state that a restart would have to save; counters begin at zero, gauges come from store and kernel.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from agent_server.observability.drift import DriftAlarm
from agent_server.observability.events import ENDS, FORGED, Event
from agent_server.store.store import Store
from client.errors import Cancelled
from client.wire import Status

LONG = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 2400, 3600, 7200)
SHORT = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


class Metrics:
    """`observe` counts an event; `exposition` is the text of a scrape. Process figures are prometheus_client's own."""

    def __init__(self, store: Store, drift: DriftAlarm, serving: Callable[[], bool]):
        self._registry = CollectorRegistry()
        self._ended = self._counter("sessions_ended", "Sessions that ended", "mode", "status")
        self._failures = self._counter("failures", "Attempts that failed, by boundary and code", "boundary", "code")
        self._retries = self._counter("retries", "Attempts repeated after an infrastructure failure", "code")
        self._exits = self._counter("agent_exits", "Completed sessions by the agent's exit status", "exit_status")
        self._resolved = self._counter(
            "sessions_resolved", "Completed sessions whose submission resolved their task", "mode"
        )
        self._forged = self._counter("sessions_forged", "Completed sessions with forged test outcomes", "mode")
        self._queue = self._histogram("queue_seconds", "From the request to the admission", LONG, "mode")
        self._total = self._histogram("session_seconds", "From the request to the end", LONG, "mode")
        self._phases = self._histogram("phase_seconds", "Seconds of a session's phases", SHORT, "phase")
        self._cpu = self._histogram("phase_cpu_seconds", "CPU seconds of a session's phases", SHORT, "phase")
        self._registry.register(_Gauges(store, drift, serving))
        ProcessCollector(registry=self._registry)

    def observe(self, event: Event) -> None:
        """Count an event of agent_server/observability/events.py."""
        name, mode = event["name"], event["mode"] or ""
        if name == "admitted":
            self._queue.labels(mode).observe(event["queue_s"])
        if name == "retried":
            self._retries.labels(event["error"]["code"]).inc()
        if (error := event.get("error")) and error["boundary"] != Cancelled.boundary:
            self._failures.labels(error["boundary"], error["code"]).inc()
        if name not in ENDS:
            return
        self._ended.labels(mode, name).inc()
        self._total.labels(mode).observe(event["total_s"])
        for phase, seconds in event.get("seconds", {}).items():
            self._phases.labels(phase).observe(seconds)
        for phase, seconds in event.get("cpu_seconds", {}).items():
            self._cpu.labels(phase).observe(seconds)
        if name == Status.COMPLETED:
            self._exits.labels(event.get("agent_exit_status", "")).inc()
            self._resolved.labels(mode).inc(event.get("resolved", False))
            self._forged.labels(mode).inc(event.get("grade_status") == FORGED)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"agent_server_{name}", meaning, labels, registry=self._registry)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"agent_server_{name}", meaning, labels, registry=self._registry, buckets=buckets)


class _Gauges(Collector):
    """State at the moment of the scrape."""

    def __init__(self, store: Store, drift: DriftAlarm, serving: Callable[[], bool]):
        self._store, self._drift, self._serving = store, drift, serving

    def collect(self) -> Iterator[GaugeMetricFamily]:
        sessions = GaugeMetricFamily("agent_server_sessions", "Sessions on record", labels=("mode", "status"))
        for mode, by_status in self._store.counts().items():
            for status, n in by_status.items():
                sessions.add_metric((mode, status), n)
        limits = GaugeMetricFamily("agent_server_limit", "Limits in force", labels=("name",))
        for name, value in self._store.limits().items():
            limits.add_metric((name,), value)
        shares = GaugeMetricFamily(
            "agent_server_latest_share", "Share of the latest training sessions that show a sign", labels=("sign",)
        )
        alarms = GaugeMetricFamily(
            "agent_server_drift_alarm",
            "1 while that share is larger than before, by more than chance",
            labels=("sign",),
        )
        for sign, share in self._drift.shares.items():
            shares.add_metric((sign,), share)
            alarms.add_metric((sign,), int(self._drift.alarms[sign]))
        yield from (sessions, limits, shares, alarms)
        processes = list(_processes())
        for name, meaning, value in (
            ("ready", "1 while sessions are accepted and run", int(self._serving())),
            ("live_sandboxes", "Running Apptainer sandboxes", processes.count((SANDBOX_PROCESS, "S"))),
            (
                "zombies",
                "Ended processes on this machine that were not reaped",
                sum(state == "Z" for _, state in processes),
            ),
            (
                "loop_devices",
                "Loop devices in use on this machine",
                sum(1 for _ in Path("/sys/block").glob("loop*/loop/backing_file")),
            ),
            (
                "leaked_instances",
                "Apptainer instances of this user; this server starts none",
                sum(1 for _ in INSTANCES.glob("*/*/*")),
            ),
        ):
            yield GaugeMetricFamily(f"agent_server_{name}", meaning, value=value)


SANDBOX_PROCESS = "starter"  # Apptainer's program, one per sandbox
INSTANCES = Path.home() / ".apptainer" / "instances" / "app"


def _processes() -> Iterator[tuple[str, str]]:
    """Name and state of every process on the machine."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = entry.read_text(errors="replace")
        except OSError:
            continue  # it ended meanwhile
        name, _, rest = text[text.index("(") + 1 :].rpartition(") ")
        yield name, rest[0]
