"""Results of all images: shown as they arrive, as a table at the end, and as JSON.

Invariant: every image of the rows has exactly one result, and the exit code is 0 only if all are usable.
"""

import json
import sys
import threading
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from client.atomic_write import write_text

State = Literal["present", "fetched", "missing", "refused", "failed", "broken", "no room", "to fetch"]
USABLE = ("present", "fetched")


@dataclass(frozen=True)
class ImageResult:
    """`reason`: why the image is unusable, or was fetched again. `downloaded`: bytes of layers from the registry."""

    name: str
    state: State
    path: str
    reason: str = ""
    bytes: int = 0
    downloaded: int = 0
    seconds: float = 0.0


class Report:
    """Collects results from any thread. Shows one bar on a terminal, otherwise a line per event, on standard error."""

    def __init__(self, total: int):
        self.results: dict[str, ImageResult] = {}
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
        if self._bar:
            self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> "Report":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def log(self, text: str) -> None:
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(f"[images] {text}", file=sys.stderr, flush=True)

    def add(self, result: ImageResult) -> None:
        """Record a result; it replaces an earlier one of the same image."""
        with self._lock:
            self.results[result.name] = result
            done, counts = len(self.results), self.counts()
        if self._bar:
            description = ", ".join(f"{number} {state}" for state, number in counts.items())
            self._bar.update(self._task, completed=done, description=description)
        if result.state != "present" and (not self._bar or result.state not in USABLE):
            details = (
                f" ({result.bytes / 1e6:.1f} MB, {result.downloaded / 1e6:.1f} MB downloaded, {result.seconds:.1f} s)"
                if result.state == "fetched"
                else ""
            )
            reason = f": {result.reason}" if result.reason else ""
            self.log(f"{done}/{self._total} {result.state} {result.name}{details}{reason}")

    def counts(self) -> Counter[str]:
        return Counter(result.state for result in self.results.values())

    def exit_code(self) -> int:
        all_usable = all(result.state in USABLE for result in self.results.values())
        return 0 if len(self.results) == self._total and all_usable else 1

    def table(self) -> str:
        """Return the number of images in each state, then every unusable image with its reason."""
        counts = self.counts()
        lines = ["state      images", *(f"{state:9} {counts[state]:7}" for state in sorted(counts))]
        unusable = [result for result in self.results.values() if result.state not in USABLE]
        lines += [
            f"{result.state:9} {result.name}" + (f": {result.reason}" if result.reason else "") for result in unusable
        ]
        return "\n".join(lines)

    def write_json(self, path: Path) -> None:
        """Write `{"counts": {STATE: N}, "downloaded": BYTES, "images": [RESULT]}`, whole or not at all. Raises
        OSError."""
        results = [asdict(result) for result in self.results.values()]
        content = {
            "counts": dict(self.counts()),
            "downloaded": sum(result.downloaded for result in self.results.values()),
            "images": results,
        }
        write_text(path, json.dumps(content, indent=1) + "\n")
