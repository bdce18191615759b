"""Index of the task rows by mode: ids and images in memory, the rows themselves in their files.

Invariant: a row that cannot be run or graded is refused, or left out, when the server starts, with its id and the
reason.
"""

import json
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from agent_server.config import Settings
from agent_server.grading.datasets.base import Dataset
from agent_server.grading.datasets.registry import AUTO, dataset_for_row, load_dataset
from agent_server.sandboxes.apptainer import check_image, image_path
from agent_server.tasks.files import find_file
from agent_server.tasks.order import MODES, TaskOrder, check_task_id
from agent_server.tasks.parts import open_parts
from agent_server.tasks.rows import Rows
from agent_server.tasks.task import Task
from agent_server.tasks.unusable import UnusableRow, show
from client.errors import ConfigError, DatasetError, ImageCorrupt, ImageMissing
from client.wire import Mode

CACHED_TASKS = 256  # the samples of a group read one row soon after each other
PROBLEM = "problem_statement"


class Catalog:
    """Rows of `data_path`: a folder (see agent_server/tasks/files.py), or one file for both modes.

    `dataset`: a name of agent_server/grading/datasets/registry.py. `exclude`: a report of `python -m agent_server
    validate`, whose failed rows are left out. `default_image`: the image of rows without one.
    `skip_without_image_in`: a folder of images. With it, `unusable` holds the rows that cannot be graded or have no
    image there, and they are no tasks. Without it, rows that cannot be graded are an error.
    Raises ConfigError for a missing file, a missing column, unusable rows, and a file without usable ones.
    """

    def __init__(
        self,
        data_path: Path,
        dataset: str = AUTO,
        exclude: Path | None = None,
        default_image: str = "",
        skip_without_image_in: Path | None = None,
    ):
        excluded = _excluded(exclude) if exclude else frozenset()
        by_file: dict[Path, _File] = {}
        self._files: dict[Mode, _File] = {}
        for mode in MODES:
            path = find_file(data_path, mode)
            if path not in by_file:
                by_file[path] = _File(path, dataset, excluded, default_image, skip_without_image_in)
            self._files[mode] = by_file[path]
        self.unusable = [row for file in by_file.values() for row in file.unusable]

    def ids(self, mode: Mode) -> list[str]:
        """Row ids of a mode in file order."""
        return list(self._files[mode].numbers)

    def check(self, mode: Mode, task_id: str) -> None:
        """Raises NotFound, with the nearest id."""
        check_task_id(mode, task_id, self._files[mode].numbers)

    def order(self, seed: int, *, shuffle: bool = True) -> TaskOrder:
        """The order in which groups get the rows. `seed` shuffles the training epochs, if `shuffle`."""
        return TaskOrder({mode: self.ids(mode) for mode in MODES}, seed, shuffle=shuffle)

    def get(self, mode: Mode, task_id: str) -> Task:
        """The task of a row. Raises NotFound, and DatasetError where the file has changed."""
        self.check(mode, task_id)
        return self._files[mode].task(task_id)

    def get_row(self, mode: Mode, task_id: str) -> tuple[dict[str, Any], Dataset, Task]:
        """A row with all its columns, its class and its task. Raises as `get` does."""
        self.check(mode, task_id)
        file = self._files[mode]
        return file.row(task_id), file.dataset, file.task(task_id)

    def image_names(self) -> set[str]:
        """Images of all rows."""
        return set().union(*(file.images for file in self._files.values()))


class _File:
    """Index of one file. `numbers`: row id -> place in the file."""

    def __init__(self, path: Path, dataset: str, excluded: frozenset[str], default_image: str, image_dir: Path | None):
        self._path, self._default_image = path, default_image
        self.unusable: list[UnusableRow] = []
        self.rows: Rows = open_parts(path)
        self.numbers: dict[str, int] = {}
        self.images: set[str] = set()
        if not self.rows.columns:
            raise ConfigError(f"{path} has no rows; a mode needs at least one task")
        self.dataset = dataset_for_row(self.rows.read(0), str(path)) if dataset == AUTO else load_dataset(dataset)
        if lacking := self.dataset.identifying_columns - self.rows.columns:
            raise ConfigError(
                f"{path} lacks the columns {', '.join(sorted(lacking))} of {self.dataset.name};"
                f" it has {', '.join(sorted(self.rows.columns))}"
            )
        self._index(path, excluded, image_dir)
        self._check_usable(path, skip=image_dir is not None)
        self._tasks: OrderedDict[str, Task] = OrderedDict()
        self._lock = threading.Lock()

    def task(self, task_id: str) -> Task:
        with self._lock:
            if task_id not in self._tasks:
                self._tasks[task_id] = self.dataset.task(self.row(task_id))
            self._tasks.move_to_end(task_id)
            if len(self._tasks) > CACHED_TASKS:
                self._tasks.popitem(last=False)
            return self._tasks[task_id]

    def row(self, task_id: str) -> dict[str, Any]:
        row = self._with_image(self.rows.read(self.numbers[task_id]))
        if (found := self.dataset.task_id(row)) != task_id:
            raise DatasetError(
                f"{self._path} has row {found!r} in the place of {task_id!r}: it was changed; restart the server"
            )
        return row

    def _with_image(self, row: dict[str, Any]) -> dict[str, Any]:
        return row if self.dataset.image(row) or not self._default_image else row | {"image": self._default_image}

    def _index(self, path: Path, excluded: frozenset[str], image_dir: Path | None) -> None:
        """Fill `numbers`, `images` and `unusable`."""
        unused = sorted(self.dataset.unused_columns)
        texts = (*self.dataset.text_columns, *unused)
        columns = (*self.dataset.read_columns, *self.dataset.list_columns)
        images: dict[str, str] = {}  # name -> what is wrong with the image, or ""
        for number, row in enumerate(self.rows.scan(columns, texts)):
            row = self._with_image(row)
            task_id = self.dataset.task_id(row)
            if task_id in excluded:
                continue
            if not (fault := self._fault(row, task_id, unused)) and image_dir:
                name = self.dataset.image(row)
                if name not in images:
                    images[name] = _image_fault(image_dir, name)
                fault = images[name]
            if fault:
                self.unusable.append(UnusableRow(path.name, task_id or number, fault))
                continue
            self.numbers[task_id] = number
            self.images.add(self.dataset.image(row))

    def _fault(self, row: dict[str, Any], task_id: str, unused: list[str]) -> str:
        """Why the row cannot be graded; "" where it can."""
        if task_id in self.numbers:
            return "its id occurs twice"
        try:
            fault = self.dataset.reason_ungradable(row) if task_id else "it has no instance_id"
            if not fault:
                self.dataset.tests(row)  # raises where a list of tests is none
        except ValueError as unreadable:
            return str(unreadable)
        except Exception as unexpected:  # the class may be the user's
            return f"{type(unexpected).__name__}: {unexpected}"
        if not fault and (filled := next((name for name in unused if row.get(name)), "")):
            fault = f"its {filled} says how to grade it, and {self.dataset.name} does not use that"
        if not fault and PROBLEM in self.dataset.text_columns and not row.get(PROBLEM):
            fault = f"its {PROBLEM} is empty"
        return fault

    def _check_usable(self, path: Path, skip: bool) -> None:
        """Raises ConfigError."""
        if self.unusable and not skip:
            raise ConfigError(
                f"{path}: {len(self.unusable)} rows cannot be graded; fill what they lack, drop them (`setup.data"
                f" fetch --where`), or set AGENT_SERVER_UNUSABLE_ROWS=skip:\n  {show(self.unusable)}"
            )
        if not self.numbers and self.unusable:
            raise ConfigError(f"{path} has no usable row; a mode needs at least one task:\n  {show(self.unusable)}")
        if not self.numbers:
            raise ConfigError(f"{path} has no rows but those excluded; a mode needs at least one task")


def _image_fault(image_dir: Path, name: str) -> str:
    try:
        check_image(image_path(image_dir, name))
    except (ImageMissing, ImageCorrupt) as fault:
        return str(fault)
    return ""


def open_catalog(settings: Settings) -> Catalog:
    """The catalog of the settings' rows. Raises ConfigError."""
    skip_without_image_in = settings.sif_dir if settings.unusable_rows == "skip" else None
    return Catalog(
        settings.data_path, settings.dataset, settings.exclude, settings.default_image, skip_without_image_in
    )


def _excluded(report: Path) -> frozenset[str]:
    try:
        return frozenset(json.loads(report.read_text())["excluded"])
    except (OSError, ValueError, KeyError, TypeError) as unreadable:
        raise ConfigError(
            f"AGENT_SERVER_EXCLUDE={report} must be a report of `python -m agent_server validate`: {unreadable!r}"
        ) from unreadable
