"""The task rows of a dataset, by mode, as typed records.

Invariant: a row that could not be run or graded is refused when the server starts, by its id and the reason.
"""

import difflib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from client.errors import ConfigError, NotFound
from client.wire import Mode

COLUMNS = ("instance_id", "image_name", "problem_statement", "patch", "FAIL_TO_PASS", "PASS_TO_PASS", "test_cmd")
MODES: tuple[Mode, ...] = ("train", "eval")


@dataclass(frozen=True, slots=True)
class Task:
    """A SWE-smith-style row: `bug_patch` applied to the image's repository makes the bug. The two test lists hold test ids
    as the test runner prints them: those that must turn from failing to passing, and those that must stay passing."""

    task_id: str
    image_name: str
    problem_statement: str
    bug_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    test_command: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Task":
        lists = {name: tuple(fields[name]) for name in ("fail_to_pass", "pass_to_pass")}
        return cls(**(fields | lists))

    def test_files(self) -> tuple[str, ...]:
        """Files that hold the row's tests, by the part of a test id before `::`."""
        return tuple(sorted({test.split("::")[0] for test in (*self.fail_to_pass, *self.pass_to_pass)}))


class Catalog:
    """Rows of `data_path`: a folder with `train.parquet|jsonl` and `eval.parquet|jsonl`, or one file that serves both modes.

    Raises ConfigError for a missing file, a missing column or a row that cannot be graded.
    """

    def __init__(self, data_path: Path):
        self.tasks: dict[Mode, dict[str, Task]] = {}
        by_file: dict[Path, dict[str, Task]] = {}
        for mode in MODES:
            path = _file_of(data_path, mode)
            if path not in by_file:
                by_file[path] = _read(path)
            self.tasks[mode] = by_file[path]

    def ids(self, mode: Mode) -> list[str]:
        """Row ids of a mode in file order."""
        return list(self.tasks[mode])

    def get(self, mode: Mode, task_id: str) -> Task:
        """Raises NotFound, with the nearest id there is."""
        if task := self.tasks[mode].get(task_id):
            return task
        near = difflib.get_close_matches(task_id, self.tasks[mode], n=1)
        raise NotFound(f"no {mode} task {task_id!r}" + (f"; did you mean {near[0]!r}?" if near else ""), field="task_id")

    def image_names(self) -> set[str]:
        return {task.image_name for tasks in self.tasks.values() for task in tasks.values()}


def _file_of(data_path: Path, mode: Mode) -> Path:
    if data_path.is_file():
        return data_path
    for suffix in (".parquet", ".jsonl"):
        if (path := data_path / f"{mode}{suffix}").is_file():
            return path
    raise ConfigError(
        f"R2E_DATA_PATH={data_path} has no {mode}.parquet or {mode}.jsonl; give a folder with both, or one file that serves both modes"
    )


def _read(path: Path) -> dict[str, Task]:
    try:
        if path.suffix == ".jsonl":
            rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
            columns = set(rows[0]) if rows else set()
        else:
            table = parquet.read_table(path)
            rows, columns = table.to_pylist(), set(table.column_names)
    except (OSError, ValueError) as unreadable:
        raise ConfigError(f"{path} cannot be read as {path.suffix.lstrip('.')}: {unreadable}") from unreadable
    if missing := [name for name in COLUMNS if name not in columns]:
        raise ConfigError(f"{path} lacks the columns {', '.join(missing)}; it has {', '.join(sorted(columns)) or 'none'}")
    if not rows:
        raise ConfigError(f"{path} has no rows; a mode needs at least one task")
    tasks: dict[str, Task] = {}
    for row in rows:
        task = _task(row, path)
        if task.task_id in tasks:
            raise ConfigError(f"{path}: instance_id {task.task_id!r} stands twice; ids must be unique")
        tasks[task.task_id] = task
    return tasks


def _task(row: dict[str, Any], path: Path) -> Task:
    task = Task(
        task_id=str(row["instance_id"]),
        image_name=str(row["image_name"] or ""),
        problem_statement=str(row["problem_statement"] or ""),
        bug_patch=str(row["patch"] or ""),
        fail_to_pass=_test_ids(row["FAIL_TO_PASS"]),
        pass_to_pass=_test_ids(row["PASS_TO_PASS"]),
        test_command=str(row["test_cmd"] or ""),
    )
    for name, value in {"image_name": task.image_name, "FAIL_TO_PASS": task.fail_to_pass, "test_cmd": task.test_command}.items():
        if not value:
            raise ConfigError(f"{path}: row {task.task_id!r} cannot be graded, its {name} is empty; fill it or drop the row")
    return task


def _test_ids(value: Any) -> tuple[str, ...]:
    """Datasets hold the list as a list or as its JSON text."""
    return tuple(json.loads(value)) if isinstance(value, str) and value else tuple(value or ())
