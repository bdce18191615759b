"""What a batch leaves for people and for other programs: a summary, a table, SWE-bench predictions, a line of progress.

Invariant: samples that the infrastructure failed are counted as such and stand in no rate.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, TextIO

from client.evaluation.pass_at_k import COVERED, RESAMPLES, SEED, Estimate, estimate, ks
from client.evaluation.results import Book, Record, Sample, Settings

SUMMARY = "summary.json"


def summarize(settings: Settings, records: list[Record]) -> dict[str, Any]:
    """All figures, from every line of results.jsonl; the last line of a sample counts, tokens count of all."""
    last = {Sample(record.task_id, record.sample): record for record in records}
    done = [record for record in last.values() if record.status == "completed"]
    failed = [record for record in last.values() if record.status == "failed"]
    tried, won = (
        Counter(record.task_id for record in done),
        Counter(record.task_id for record in done if record.resolved),
    )
    counts = [(tried[task], won[task]) for task in settings.tasks if tried[task]]
    passes = {str(k): asdict(found) for k in ks(settings.samples) if (found := estimate(counts, k))}
    wanted = len(settings.tasks) * settings.samples
    return {
        "model": settings.model, "split": settings.split, "tasks": len(settings.tasks), "samples_per_task": settings.samples,
        "samples": wanted, "completed": len(done), "resolved": sum(won.values()),
        "infrastructure_failures": len(failed), "not_run": wanted - len(last),
        "failures": dict(Counter(f"{record.error.get('boundary')}/{record.error.get('code')}" for record in failed).most_common()),
        "exit_statuses": dict(Counter(record.exit_status or "none" for record in done).most_common()),
        "pass_at": passes, "interval": f"percentile bootstrap over tasks, {COVERED:.0%}, {RESAMPLES} resamples, seed {SEED}",
        "calls": sum(record.calls for record in records),
        "prompt_tokens": sum(record.prompt_tokens for record in records), "completion_tokens": sum(record.completion_tokens for record in records),
    }  # fmt: skip


def table(summary: dict[str, Any]) -> str:
    rows = [
        ("model", summary["model"]),
        ("tasks", f"{summary['tasks']} of {summary['split']}, {summary['samples_per_task']} samples each"),
    ]
    rows += [(f"pass@{k}", _told(Estimate(**found))) for k, found in summary["pass_at"].items()]
    rows += [("completed", f"{summary['completed']} of {summary['samples']}, {summary['resolved']} resolved")]
    rows += [(f"  {status}", str(count)) for status, count in summary["exit_statuses"].items()]
    if summary["failures"]:
        rows += [
            (
                "infrastructure",
                f"{summary['infrastructure_failures']} failed, in no rate; the same command runs them again",
            )
        ]
    rows += [(f"  {failure}", str(count)) for failure, count in summary["failures"].items()]
    rows += [("not run", str(summary["not_run"]))] if summary["not_run"] else []
    rows += [
        ("calls", str(summary["calls"])),
        ("tokens", f"{summary['prompt_tokens']} in, {summary['completion_tokens']} out"),
    ]
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(f"{name:{width}}{value}" for name, value in rows)


def write(book: Book) -> dict[str, Any]:
    """summary.json, and predictions-INDEX.jsonl in SWE-bench's form: one a task, of the samples with that index. Returns the summary."""
    summary = summarize(book.settings, book.records)
    results = book.results()
    for index in range(book.settings.samples):
        found = (results.get(Sample(task, index)) for task in book.settings.tasks)
        predictions = (
            _prediction(record, book.settings.model) for record in found if record and record.status == "completed"
        )
        book.write(f"predictions-{index}.jsonl", "".join(predictions))
    book.write(SUMMARY, json.dumps(summary, indent=2) + "\n")
    return summary


def _prediction(record: Record, model: str) -> str:
    return (
        json.dumps({"instance_id": record.task_id, "model_name_or_path": model, "model_patch": record.submission or ""})
        + "\n"
    )


def _told(found: Estimate) -> str:
    interval = "no interval" if found.low is None else f"{found.low:.1%} to {found.high:.1%}"
    return f"{found.value:.1%} ({interval}; {found.tasks} tasks)"


class Progress:
    """A line a finished sample; on a terminal one line that is drawn anew."""

    def __init__(self, out: TextIO, records: Iterable[Record], wanted: int):
        """`records`: those that count before this run begins."""
        self._out, self._wanted, self._started = out, wanted, time.monotonic()
        completed = [record for record in records if record.status == "completed"]
        self._completed, self._resolved = len(completed), sum(record.resolved for record in completed)
        self._failed = self._ended_now = 0
        self._left = wanted - self._completed

    def after(self, record: Record) -> None:
        self._completed += record.status == "completed"
        self._failed += record.status == "failed"
        self._resolved += record.resolved
        self._ended_now += 1
        line = self.line(time.monotonic() - self._started)
        print(
            f"\r{line}\x1b[K" if self._out.isatty() else line,
            end="" if self._out.isatty() else "\n",
            file=self._out,
            flush=True,
        )

    def line(self, elapsed_s: float) -> str:
        rate = f", {self._resolved} resolved ({self._resolved / self._completed:.1%})" if self._completed else ""
        failed = f", {self._failed} failed by infrastructure" if self._failed else ""
        eta_s = elapsed_s / self._ended_now * (self._left - self._ended_now)
        return f"{self._completed} of {self._wanted} samples completed{rate}{failed}, {_clock(eta_s)} left"

    def close(self) -> None:
        if self._out.isatty() and self._ended_now:
            print(file=self._out)


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
