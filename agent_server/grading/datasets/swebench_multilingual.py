"""SWE-bench Multilingual rows, new and old: SWE-bench's columns; repositories in Go, Rust, Java, JavaScript and others.

Invariant: their runners report by what they print alone, and SWE-bench's authors grade by that. So the code under test
can forge their outcomes. Rows of Python among them are graded as SWE-bench's, by the runner's own report.
"""

from collections.abc import Mapping
from typing import Any

from agent_server.grading.datasets.base import text
from agent_server.grading.datasets.swebench import SweBench
from agent_server.grading.datasets.swebench_parsers import is_pythons
from agent_server.grading.datasets.swebench_specifications import PYTHON, specification
from agent_server.tasks.task import Task


class SweBenchMultilingual(SweBench):
    name = "swebench_multilingual"

    def recognises(self, row: Mapping[str, Any]) -> bool:
        known = specification(text(row.get("repo")))
        return super().recognises(row) and known is not None and known.language != PYTHON

    def reason_unconfirmed(self, parser: str) -> str:
        return ""

    def trusts_printed_output(self, task: Task) -> bool:
        return not is_pythons(task.row["log_parser"])
