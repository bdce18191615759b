"""What came of every image: shown as it happens, as a table at the end, and as JSON.

Invariant: every image that the rows name stands in the report, once, and the exit code is 0 only if all can be used.
"""

import json
import os
import sys
import threading
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

State = Literal["present", "fetched", "missing", "refused", "failed", "broken", "no room", "to fetch"]
USABLE = ("present", "fetched")


@dataclass(frozen=True)
class Outcome:
    """`downloaded`: bytes of layers over the wire. `reason`: of what cannot be used, or why it was fetched again."""

    name: str
    state: State
    path: str
    reason: str = ""
    bytes: int = 0
    downloaded: int = 0
    seconds: float = 0.0


class Report:
    """Collects outcomes from any thread; one bar on a terminal, else a line for each thing that happens, on standard error."""

    def __init__(self, total: int):
        self.outcomes: dict[str, Outcome] = {}
        self._total, self._lock = total, threading.Lock()
        console = Console(stderr=True)
        columns = (
            TextColumn("images"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )
        self._bar = Progress(*columns, console=console) if console.is_terminal else None
        self._task = self._bar.add_task("", total=total) if self._bar else None

    def __enter__(self) -> "Report":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        if self._bar:
            self._bar.stop()

    def say(self, text: str) -> None:
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(f"[images] {text}", file=sys.stderr, flush=True)

    def add(self, outcome: Outcome) -> None:
        """Replaces an earlier outcome of the same image."""
        with self._lock:
            self.outcomes[outcome.name] = outcome
            done, counted = len(self.outcomes), self.counts()
        if self._bar:
            self._bar.update(
                self._task,
                completed=done,
                description=", ".join(f"{number} {state}" for state, number in counted.items()),
            )
        if outcome.state != "present" and (not self._bar or outcome.state not in USABLE):
            facts = (
                f" ({outcome.bytes / 1e6:.1f} MB, {outcome.downloaded / 1e6:.1f} MB downloaded, {outcome.seconds:.1f} s)"
                if outcome.state == "fetched"
                else ""
            )
            self.say(
                f"{done}/{self._total} {outcome.state} {outcome.name}{facts}"
                + (f": {outcome.reason}" if outcome.reason else "")
            )

    def counts(self) -> Counter[str]:
        return Counter(outcome.state for outcome in self.outcomes.values())

    def exit_code(self) -> int:
        return (
            0
            if len(self.outcomes) == self._total and all(outcome.state in USABLE for outcome in self.outcomes.values())
            else 1
        )

    def table(self) -> str:
        """Numbers by state, then every image that cannot be used."""
        counts = self.counts()
        lines = ["state      images", *(f"{state:9} {counts[state]:7}" for state in sorted(counts))]
        useless = [outcome for outcome in self.outcomes.values() if outcome.state not in USABLE]
        return "\n".join(
            lines
            + [
                f"{outcome.state:9} {outcome.name}" + (f": {outcome.reason}" if outcome.reason else "")
                for outcome in useless
            ]
        )

    def write_json(self, path: Path) -> None:
        """`{"counts": {STATE: N}, "downloaded": BYTES, "images": [OUTCOME]}`, whole or not at all."""
        outcomes = [asdict(outcome) for outcome in self.outcomes.values()]
        whole = {
            "counts": dict(self.counts()),
            "downloaded": sum(outcome["downloaded"] for outcome in outcomes),
            "images": outcomes,
        }
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        partial.write_text(json.dumps(whole, indent=1) + "\n")
        partial.replace(path)
