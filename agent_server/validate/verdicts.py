"""Verdicts on single submissions, and the JSONL file that keeps them between runs.

Invariant: lines are appended as verdicts are found, the gold verdict of a repeat last. A repeat without it was
interrupted and is repeated by the next run.
"""

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_server.grading.datasets.base import Dataset

GOLD, EMPTY = "gold", "empty"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The grade of one submission to one row.

    `expected`: what `resolved` should be. `error`: why there is no grade. `not_applicable`: why the attack cannot be
    made for this row; then there is nothing to grade. `limit`: the sandbox limit that ended the tests, `time` for the
    time limit of grading. `setting`: the server's setting of that limit. `key`: a digest of everything that the verdict
    depends on.
    """

    task_id: str
    case: str
    repeat: int
    expected: bool
    resolved: bool | None
    status: str
    seconds: float
    touched: tuple[str, ...] = ()
    error: str = ""
    log: str = ""
    failing: tuple[str, ...] = ()
    not_applicable: str = ""
    limit: str = ""
    setting: str = ""
    key: str = ""

    @property
    def as_expected(self) -> bool:
        """Whether the grade is the expected one, or there is nothing to grade."""
        return bool(self.not_applicable) or self.resolved is self.expected

    @property
    def small_limit(self) -> str:
        """The limit that ended the tests of the gold patch, with its setting: it is too small for the row. "" for
        none."""
        if self.case != GOLD or self.as_expected or not self.limit:
            return ""
        return f"{self.limit} ({self.setting})" if self.setting else self.limit

    @property
    def reason(self) -> str:
        """Why it is not as expected, in one line."""
        if self.small_limit:
            return f"{self.case}: limit too small for this row: {self.small_limit}"
        if self.error:
            return f"{self.case}: {self.error}"
        text = f"{self.case}: {'resolved' if self.resolved else 'not resolved'} ({self.status})"
        if self.failing:
            text += f", not passed: {', '.join(self.failing[:3])}{', ...' if len(self.failing) > 3 else ''}"
        last_line = next((line for line in reversed(self.log.splitlines()) if line.strip()), "")
        return text + (f"; {last_line}"[:200] if last_line else "")


def digest(row: dict[str, Any], dataset: Dataset, image: Path, *conditions: object) -> str:
    """Key of everything that a verdict depends on: the row, its dataset class, its image, the sandbox's conditions."""
    stat = image.stat() if image.exists() else None
    parts = [
        json.dumps(row, default=str, sort_keys=True),
        inspect.getsource(type(dataset)),
        stat and (stat.st_size, stat.st_mtime_ns),
        *conditions,
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def append_repeat(lines: Path, verdicts: Sequence[Verdict]) -> None:
    """Append the verdicts of one repeat, which come gold first, so that the gold one is the last line."""
    with lines.open("a") as file:
        file.writelines(json.dumps(asdict(verdict)) + "\n" for verdict in reversed(verdicts))


def read_usable(lines: Path, keys: Mapping[str, str]) -> list[Verdict]:
    """Verdicts of an earlier run that still count: of complete repeats without an error, with the row's present
    key."""
    repeats: dict[tuple[str, int, str], list[Verdict]] = {}
    for verdict in _read(lines):
        repeats.setdefault((verdict.task_id, verdict.repeat, verdict.key), []).append(verdict)
    usable: list[Verdict] = []
    for (task_id, _, key), verdicts in repeats.items():
        is_complete = verdicts[-1].case == GOLD and not any(verdict.error for verdict in verdicts)
        if keys.get(task_id) == key and is_complete:
            usable += reversed(verdicts)  # gold first again
    return usable


def _read(lines: Path) -> list[Verdict]:
    """All verdicts in the file. Its last line may be torn."""
    verdicts = []
    for line in lines.read_text().splitlines() if lines.exists() else ():
        try:
            fields = json.loads(line)
            verdicts.append(Verdict(**fields | {name: tuple(fields[name]) for name in ("touched", "failing")}))
        except (ValueError, TypeError, KeyError):
            continue
    return verdicts
