"""Reports of an evaluation: summary, table, SWE-bench predictions, progress line.

Invariant: samples that the infrastructure failed are counted as such and are part of no rate.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, TextIO

from client.evaluation.pass_at_k import CONFIDENCE, RESAMPLES, SEED, Estimate, estimate, reported_ks
from client.evaluation.results import EvaluationSample, EvaluationSettings, Record, ResultStore

SUMMARY = "summary.json"


def summarize(settings: EvaluationSettings, records: list[Record]) -> dict[str, Any]:
    """All figures of results.jsonl. A sample's last line counts; calls and tokens are summed over all lines."""
    last = {EvaluationSample(record.task_id, record.sample): record for record in records}
    completed = [record for record in last.values() if record.status == "completed"]
    failed = [record for record in last.values() if record.status == "failed"]
    samples = Counter(record.task_id for record in completed)
    resolved = Counter(record.task_id for record in completed if record.resolved)
    counts = [(samples[task], resolved[task]) for task in settings.tasks if samples[task]]
    estimates = {k: estimate(counts, k) for k in reported_ks(settings.samples)}
    total = len(settings.tasks) * settings.samples
    errors = [record.error or {} for record in failed]
    failures = Counter(f"{error.get('boundary')}/{error.get('code')}" for error in errors)
    return {
        "model": settings.model, "split": settings.split,
        "tasks": len(settings.tasks), "samples_per_task": settings.samples, "samples": total,
        "completed": len(completed), "resolved": sum(resolved.values()),
        "infrastructure_failures": len(failed), "not_run": total - len(last),
        "failures": dict(failures.most_common()),
        "exit_statuses": dict(Counter(record.exit_status or "none" for record in completed).most_common()),
        "pass_at": {str(k): asdict(value) for k, value in estimates.items() if value},
        "interval": f"percentile bootstrap over tasks, {CONFIDENCE:.0%}, {RESAMPLES} resamples, seed {SEED}",
        "calls": sum(record.calls for record in records),
        "prompt_tokens": sum(record.prompt_tokens for record in records),
        "completion_tokens": sum(record.completion_tokens for record in records),
    }  # fmt: skip


def table(summary: dict[str, Any]) -> str:
    """The summary as lines of name and value."""
    tasks = f"{summary['tasks']} of {summary['split']}, {summary['samples_per_task']} samples each"
    rows = [("model", summary["model"]), ("tasks", tasks)]
    rows += [(f"pass@{k}", _format_estimate(Estimate(**value))) for k, value in summary["pass_at"].items()]
    rows += [("completed", f"{summary['completed']} of {summary['samples']}, {summary['resolved']} resolved")]
    rows += [(f"  {status}", str(count)) for status, count in summary["exit_statuses"].items()]
    if summary["failures"]:
        failed = f"{summary['infrastructure_failures']} failed, in no rate; the same command runs them again"
        rows += [("infrastructure", failed)]
    rows += [(f"  {failure}", str(count)) for failure, count in summary["failures"].items()]
    rows += [("not run", str(summary["not_run"]))] if summary["not_run"] else []
    tokens = f"{summary['prompt_tokens']} in, {summary['completion_tokens']} out"
    rows += [("calls", str(summary["calls"])), ("tokens", tokens)]
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(f"{name:{width}}{value}" for name, value in rows)


def write(store: ResultStore) -> dict[str, Any]:
    """Write summary.json, and predictions-INDEX.jsonl in SWE-bench's form per sample index. Returns the summary."""
    summary = summarize(store.settings, store.records)
    results = store.results()
    for index in range(store.settings.samples):
        records = [results.get(EvaluationSample(task, index)) for task in store.settings.tasks]
        completed = [record for record in records if record and record.status == "completed"]
        lines = "".join(f"{json.dumps(_prediction(record, store.settings.model))}\n" for record in completed)
        store.write(f"predictions-{index}.jsonl", lines)
    store.write(SUMMARY, json.dumps(summary, indent=2) + "\n")
    return summary


def _prediction(record: Record, model: str) -> dict[str, str]:
    patch = record.submission or ""
    return {"instance_id": record.task_id, "model_name_or_path": model, "model_patch": patch}


def _format_estimate(value: Estimate) -> str:
    interval = "no interval" if value.low is None else f"{value.low:.1%} to {value.high:.1%}"
    return f"{value.value:.1%} ({interval}; {value.tasks} tasks)"


class Progress:
    """One line per finished sample; on a terminal a single line that is redrawn."""

    def __init__(self, out: TextIO, records: Iterable[Record], total: int):
        """`records`: those of earlier runs. `total`: the number of samples."""
        self._out, self._total, self._started = out, total, time.monotonic()
        completed = [record for record in records if record.status == "completed"]
        self._completed, self._resolved = len(completed), sum(record.resolved for record in completed)
        self._failed = self._ended_now = 0
        self._left = total - self._completed

    def update(self, record: Record) -> None:
        """Count a finished sample and print the line."""
        self._completed += record.status == "completed"
        self._failed += record.status == "failed"
        self._resolved += record.resolved
        self._ended_now += 1
        line = self.line(time.monotonic() - self._started)
        if self._out.isatty():
            print(f"\r{line}\x1b[K", end="", file=self._out, flush=True)
        else:
            print(line, file=self._out, flush=True)

    def line(self, elapsed_s: float) -> str:
        rate = f", {self._resolved} resolved ({self._resolved / self._completed:.1%})" if self._completed else ""
        failed = f", {self._failed} failed by infrastructure" if self._failed else ""
        eta_s = elapsed_s / self._ended_now * (self._left - self._ended_now)
        return f"{self._completed} of {self._total} samples completed{rate}{failed}, {_clock(eta_s)} left"

    def close(self) -> None:
        """End the line on a terminal."""
        if self._out.isatty() and self._ended_now:
            print(file=self._out)


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
