"""What a run says while it runs: phase, sessions queued, running and done, reward so far.

Invariant: it only shows what it is told. On a terminal one line is redrawn in place; elsewhere lines are printed, few
enough to be read in a log file.
"""

import sys
import time
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from trainer.rollouts.manager import Progress

PLAIN_EVERY_S = 15.0


class Display:
    """Enter it around a run. `phase` and `progress` say where the run is; `message` prints a line that stays."""

    def __init__(self, stream: TextIO | None = None):
        self._start = self._phase_start = time.monotonic()
        self._phase, self._progress = "starting", None
        self._next_plain = 0.0
        self._console = Console(file=stream or sys.stdout, highlight=False, soft_wrap=True)
        self._live = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(get_renderable=self._line, console=self._console, refresh_per_second=2, transient=True)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def message(self, text: str) -> None:
        self._console.print(Text(text))

    def phase(self, name: str) -> None:
        """A new phase begins, for instance `step 3/16: rollouts`."""
        self._phase, self._progress, self._phase_start = name, None, time.monotonic()
        self._next_plain = self._phase_start + PLAIN_EVERY_S

    def progress(self, progress: Progress) -> None:
        """Where the phase's sessions stand."""
        self._progress = progress
        if not self._live and time.monotonic() >= self._next_plain:
            self._next_plain = time.monotonic() + PLAIN_EVERY_S
            self._console.print(self._line())

    def _line(self) -> Text:
        now = time.monotonic()
        line = f"[{_clock(now - self._start)}] {self._phase} ({now - self._phase_start:.0f} s)"
        if self._progress:
            p = self._progress
            line += f" | sessions: {p.queued} queued, {p.running} running, {p.done}/{p.total} done"
            line += f", {p.refills} refilled" if p.refills else ""
            line += f" | mean reward so far {sum(p.rewards) / len(p.rewards):.2f}" if p.rewards else ""
        return Text(line)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
