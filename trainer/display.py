"""Progress of a run on the console: phase, sessions waiting, running and done, mean reward so far.

Invariant: it displays and decides nothing. On a terminal one line is redrawn in place. Elsewhere a line is printed
every 15 seconds, few enough for a log file.
"""

import sys
import time
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from trainer.rollouts.manager import RolloutProgress

PLAIN_EVERY_S = 15.0


class Display:
    """Context manager around a run. `phase` and `progress` update the status line; `message` prints a permanent one."""

    def __init__(self, stream: TextIO | None = None):
        self._start = self._phase_start = time.monotonic()
        self._phase = "starting"
        self._progress: RolloutProgress | None = None
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
        """Print a line that stays."""
        self._console.print(Text(text))

    def phase(self, name: str) -> None:
        """Begin a phase, for instance `step 3/16: rollouts`."""
        self._phase, self._progress, self._phase_start = name, None, time.monotonic()
        self._next_plain = self._phase_start + PLAIN_EVERY_S

    def progress(self, progress: RolloutProgress) -> None:
        """Update the session counts of the phase."""
        self._progress = progress
        if not self._live and time.monotonic() >= self._next_plain:
            self._next_plain = time.monotonic() + PLAIN_EVERY_S
            self._console.print(self._line())

    def _line(self) -> Text:
        now = time.monotonic()
        line = f"[{_clock(now - self._start)}] {self._phase} ({now - self._phase_start:.0f} s)"
        if self._progress:
            p = self._progress
            line += f" | sessions: {p.waiting} waiting, {p.running} running, {p.done}/{p.total} done"
            line += f", {p.refills} refilled" if p.refills else ""
            line += f" | mean reward so far {sum(p.rewards) / len(p.rewards):.2f}" if p.rewards else ""
        return Text(line)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
