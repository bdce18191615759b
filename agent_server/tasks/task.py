"""Task: the part of a dataset row that a worker gets.

Invariant: complete and serialisable. A worker reads no dataset file.
"""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """One task. `dataset`: the name of its class in agent_server/grading/datasets/registry.py.

    The two test lists hold ids as the test runner prints them: tests that must turn from failing to passing, and tests
    that must stay passing. `row`: the other columns that the dataset's class requires.
    """

    task_id: str
    dataset: str
    image_name: str
    problem_statement: str
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    row: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Task":
        """Inverse of `as_dict`, also after JSON."""
        lists = {name: tuple(fields[name]) for name in ("fail_to_pass", "pass_to_pass")}
        return cls(**(fields | lists))
