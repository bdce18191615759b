"""The report on all verdicts: a JSON file for AGENT_SERVER_EXCLUDE, and a table for people."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_server.grading.canary import FORGED
from agent_server.validate.verdicts import Verdict
from client.atomic_write import write_text


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """`failing`: verdicts other than expected, by row. `flaky`: rows of which a case changes between repeats.
    `not_applicable`: by case and reason, the rows for which the attack cannot be made."""

    rows: int
    cases: dict[str, dict[str, Any]]
    failing: dict[str, list[Verdict]]
    flaky: list[str]
    not_applicable: dict[str, dict[str, list[str]]]

    @property
    def excluded(self) -> list[str]:
        """Rows that cannot be trusted, and those that a limit is too small for."""
        return sorted(self.failing)

    @property
    def small_limits(self) -> dict[str, str]:
        """The limit that was too small for the gold patch, by row."""
        found = {
            task_id: next((verdict.small_limit for verdict in self.failing[task_id] if verdict.small_limit), "")
            for task_id in self.excluded
        }
        return {task_id: limit for task_id, limit in found.items() if limit}

    def write(self, path: Path) -> None:
        """Replace the file at `path`. Raises OSError."""
        body = {
            "rows": self.rows,
            "cases": self.cases,
            "excluded": self.excluded,
            "small_limits": self.small_limits,
            "flaky": self.flaky,
            "not_applicable": self.not_applicable,
            "failures": [asdict(verdict) for verdicts in self.failing.values() for verdict in verdicts],
        }
        write_text(path, json.dumps(body, indent=1))

    def show(self, path: Path) -> None:
        """Print the table, the failures and the path of the file."""
        columns = f"{'graded':>7} {'resolved':>9} {'forged':>7} {'no grade':>9} {'not applicable':>15}"
        print(f"\n{'case':35} {columns} {'expected':>9} {'median s':>9}")
        for case, line in self.cases.items():
            share = f"{100 * line['resolved'] / line['graded']:.0f}%" if line["graded"] else "-"
            expected = "100%" if line["expected"] else "0%"
            print(
                f"{case:35} {line['graded']:7} {share:>9} {line['forged']:7} {line['no_grade']:9}"
                f" {line['not_applicable']:15} {expected:>9} {line['median_seconds']:9.2f}"
            )
        for case, reasons in self.not_applicable.items():
            for reason, task_ids in reasons.items():
                print(f"  {case}: not applicable to {len(task_ids)} rows: {reason}")
        for task_id in self.excluded:
            for verdict in self.failing[task_id]:
                print(f"  {task_id}: {verdict.reason}")
        print(
            f"{self.rows - len(self.excluded)} of {self.rows} rows can be trusted, {len(self.small_limits)} need a"
            f" larger limit, {len(self.flaky)} are flaky; report in {path}"
            f"{f' (AGENT_SERVER_EXCLUDE={path})' if self.excluded else ''}"
        )


def summarize(verdicts: Iterable[Verdict]) -> ValidationReport:
    """The report on these verdicts."""
    by_row: dict[str, list[Verdict]] = {}
    by_case: dict[str, list[Verdict]] = {}
    not_applicable: dict[str, dict[str, list[str]]] = {}
    for verdict in verdicts:
        by_row.setdefault(verdict.task_id, []).append(verdict)
        by_case.setdefault(verdict.case, []).append(verdict)
        if verdict.not_applicable and verdict.repeat == 0:
            rows = not_applicable.setdefault(verdict.case, {}).setdefault(verdict.not_applicable, [])
            rows.append(verdict.task_id)
    failing = {task_id: [verdict for verdict in found if not verdict.as_expected] for task_id, found in by_row.items()}
    return ValidationReport(
        rows=len(by_row),
        cases={case: _line(found) for case, found in by_case.items()},
        failing={task_id: found for task_id, found in failing.items() if found},
        flaky=sorted(task_id for task_id, found in by_row.items() if _is_flaky(found)),
        not_applicable=not_applicable,
    )


def _line(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """One line of the table. `graded`: submissions that were to be graded; `forged`: those of them that only the canary
    run kept from a reward; `no_grade`: those without a grade."""
    made = [verdict for verdict in verdicts if not verdict.not_applicable]
    return {
        "graded": len(made),
        "resolved": sum(verdict.resolved is True for verdict in made),
        "no_grade": sum(verdict.resolved is None for verdict in made),
        "forged": sum(verdict.status == FORGED for verdict in made),
        "not_applicable": len(verdicts) - len(made),
        "expected": verdicts[0].expected,
        "median_seconds": sorted(verdict.seconds for verdict in made)[len(made) // 2] if made else 0.0,
    }


def _is_flaky(verdicts: Sequence[Verdict]) -> bool:
    grades: dict[str, set[bool | None]] = {}
    for verdict in verdicts:
        grades.setdefault(verdict.case, set()).add(verdict.resolved)
    return any(len(found) > 1 for found in grades.values())
