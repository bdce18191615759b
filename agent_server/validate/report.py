"""The report on all verdicts: a JSON file for AGENT_SERVER_EXCLUDE, and a table for people."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_server.validate.verdicts import Verdict
from client.atomic_write import write_text


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """`failing`: verdicts other than expected, by row. `flaky`: rows of which a case changes between repeats."""

    rows: int
    cases: dict[str, dict[str, Any]]
    failing: dict[str, list[Verdict]]
    flaky: list[str]

    @property
    def excluded(self) -> list[str]:
        """Rows that cannot be trusted."""
        return sorted(self.failing)

    def write(self, path: Path) -> None:
        """Replace the file at `path`. Raises OSError."""
        body = {
            "rows": self.rows,
            "cases": self.cases,
            "excluded": self.excluded,
            "flaky": self.flaky,
            "failures": [asdict(verdict) for verdicts in self.failing.values() for verdict in verdicts],
        }
        write_text(path, json.dumps(body, indent=1))

    def show(self, path: Path) -> None:
        """Print the table, the failures and the path of the file."""
        print(f"\n{'case':22} {'graded':>7} {'resolved':>9} {'no grade':>9} {'expected':>9} {'median s':>9}")
        for case, line in self.cases.items():
            share = f"{100 * line['resolved'] / line['graded']:.0f}%"
            expected = "100%" if line["expected"] else "0%"
            print(
                f"{case:22} {line['graded']:7} {share:>9} {line['no_grade']:9} {expected:>9}"
                f" {line['median_seconds']:9.2f}"
            )
        for task_id in self.excluded:
            for verdict in self.failing[task_id]:
                print(f"  {task_id}: {verdict.reason}")
        print(
            f"{self.rows - len(self.excluded)} of {self.rows} rows can be trusted, {len(self.flaky)} are flaky;"
            f" report in {path}{f' (AGENT_SERVER_EXCLUDE={path})' if self.excluded else ''}"
        )


def summarize(verdicts: Iterable[Verdict]) -> ValidationReport:
    """The report on these verdicts."""
    by_row: dict[str, list[Verdict]] = {}
    by_case: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_row.setdefault(verdict.task_id, []).append(verdict)
        by_case.setdefault(verdict.case, []).append(verdict)
    failing = {task_id: [verdict for verdict in found if not verdict.as_expected] for task_id, found in by_row.items()}
    return ValidationReport(
        rows=len(by_row),
        cases={case: _line(found) for case, found in by_case.items()},
        failing={task_id: found for task_id, found in failing.items() if found},
        flaky=sorted(task_id for task_id, found in by_row.items() if _is_flaky(found)),
    )


def _line(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    return {
        "graded": len(verdicts),
        "resolved": sum(verdict.resolved is True for verdict in verdicts),
        "no_grade": sum(verdict.resolved is None for verdict in verdicts),
        "expected": verdicts[0].expected,
        "median_seconds": sorted(verdict.seconds for verdict in verdicts)[len(verdicts) // 2],
    }


def _is_flaky(verdicts: Sequence[Verdict]) -> bool:
    grades: dict[str, set[bool | None]] = {}
    for verdict in verdicts:
        grades.setdefault(verdict.case, set()).add(verdict.resolved)
    return any(len(found) > 1 for found in grades.values())
