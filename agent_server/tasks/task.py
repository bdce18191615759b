"""A row of a dataset, as the server hands it on.

Invariant: whole and serialisable. A worker needs nothing of the dataset's file besides its task.
"""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """`dataset` names the class that knows how to run and grade it (agent_server/grading/datasets/registry.py). The two test lists hold ids
    as the test runner prints them: those that must turn from failing to passing, and those that must stay passing. `row` holds
    the other columns that its dataset's class asks for."""

    task_id: str
    dataset: str
    image_name: str
    problem_statement: str
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    row: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Task":
        lists = {name: tuple(fields[name]) for name in ("fail_to_pass", "pass_to_pass")}
        return cls(**(fields | lists))
