"""A batch on disk: its settings, a line a finished sample, and the conversations.

Invariant: a line is appended whole and synced before the next sample counts; killed at any moment, the folder resumes. One process at
a time works in it.
"""

import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from client.errors import ConfigError, StorageError
from client.wire import Mode

RUN, RESULTS, TRAJECTORIES, OPEN = "run.json", "results.jsonl", "trajectories.jsonl", "open.jsonl"


class Settings(BaseModel):
    """What a sample's result depends on, save the agent server itself. A resumed run has the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1)
    base_url: str
    split: Mode
    tasks: tuple[str, ...]
    samples: int = Field(ge=1)
    temperature: float | None = Field(None, ge=0)
    max_tokens: int | None = Field(None, ge=1)
    extra: dict[str, Any] = {}
    only_resolved: bool = False

    @property
    def sampling(self) -> dict[str, Any]:
        """Fields of every request to the endpoint."""
        given = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {name: value for name, value in given.items() if value is not None} | self.extra

    def differences(self, before: Self) -> str:
        """In words; empty where there are none."""
        pairs = ((name, getattr(before, name), getattr(self, name)) for name in type(self).model_fields)
        return "; ".join(f"{name} was {_short(old)} and is now {_short(new)}" for name, old, new in pairs if old != new)


class Sample(NamedTuple):
    """One of the K tries at a task; `index` from 0."""

    task_id: str
    index: int


class Record(BaseModel):
    """The end of one sample. A reward stands there if and only if `status` is `completed`; `failed` is the infrastructure's, never the model's.

    Tokens and calls are those of the endpoint; `lost_s`: seconds that the endpoint's rate limits and faults cost.
    """

    task_id: str
    sample: int
    session_id: str
    status: Literal["completed", "failed"]
    reward: float | None = None
    resolved: bool = False
    exit_status: str | None = None
    error: dict[str, Any] | None = None
    submission: str | None = None
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    lost_s: float = 0.0
    seconds: dict[str, float] = {}


class Book:
    """The folder of one batch, from entering to leaving its `with`. `run_id` is the same in all its runs."""

    def __init__(self, folder: Path, settings: Settings):
        """Raises ConfigError for a folder of another batch, one in use, or one that cannot be read or written."""
        self.folder, self.settings = folder, settings
        self.records: list[Record] = []
        self._locked = -1

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._locked = os.open(self.folder, os.O_RDONLY)
            fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.run_id = self._open_run()
            self.records = [self._record(number, line) for number, line in enumerate(self._lines(RESULTS), 1)]
            self._drop_unrecorded()
        except BlockingIOError:
            raise ConfigError(
                f"--out {self.folder}: another batch works there; wait for it, or give another folder"
            ) from None
        except OSError as refused:
            raise ConfigError(f"--out {self.folder} cannot be used: {refused}") from None
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._locked)

    def results(self) -> dict[Sample, Record]:
        """The last record of every sample that has one."""
        return {Sample(record.task_id, record.sample): record for record in self.records}

    def missing(self) -> list[Sample]:
        """Samples without a completed record; first samples of all tasks come first."""
        found = self.results()
        samples = [Sample(task, index) for index in range(self.settings.samples) for task in self.settings.tasks]
        return [sample for sample in samples if sample not in found or found[sample].status != "completed"]

    def sessions_left_open(self) -> list[str]:
        """Server ids of sessions that an earlier run began and has no record of."""
        ended = {record.session_id for record in self.records}
        return [line["session_id"] for line in map(json.loads, self._lines(OPEN)) if line["session_id"] not in ended]

    def began(self, session_id: str) -> None:
        self._append(OPEN, {"session_id": session_id})

    def add(self, record: Record, conversation: dict[str, Any]) -> None:
        """Keep a finished sample. The conversation goes first: one without a record is dropped by the next run."""
        if conversation and record.status == "completed" and (record.resolved or not self.settings.only_resolved):
            about = {
                "task_id": record.task_id,
                "sample": record.sample,
                "session_id": record.session_id,
                "reward": record.reward,
            }
            self._append(TRAJECTORIES, conversation | about)
        self._append(RESULTS, record.model_dump(exclude_none=True))
        self.records.append(record)

    def close_sessions(self) -> None:
        """No session of this batch is open any more."""
        (self.folder / OPEN).unlink(missing_ok=True)

    def write(self, name: str, text: str) -> None:
        """A file that is whole or as it was. Raises StorageError."""
        part = self.folder / f"{name}.part"
        try:
            with part.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.folder / name)
        except OSError as refused:
            raise StorageError(
                f"{self.folder / name} cannot be written: {refused}; free some space, then run the same command again"
            ) from refused

    def _open_run(self) -> str:
        """The run's id, new or as it was. Before the first result a folder takes other settings."""
        path, begun = self.folder / RUN, (self.folder / RESULTS).exists()
        if begun and not path.exists():
            raise ConfigError(
                f"--out {self.folder} has {RESULTS} and no {RUN}: whose results are they? Give another folder"
            )
        if not begun:
            run_id = uuid.uuid4().hex
            self.write(
                RUN, json.dumps({"run_id": run_id, "settings": self.settings.model_dump(mode="json")}, indent=2) + "\n"
            )
            return run_id
        try:
            found = json.loads(path.read_text())
            before, run_id = Settings.model_validate(found["settings"]), str(found["run_id"])
        except (ValueError, KeyError, TypeError) as unreadable:  # pydantic's is a ValueError
            raise ConfigError(f"{path} is not the {RUN} of a batch: {unreadable}; give another folder") from None
        if differs := self.settings.differences(before):
            raise ConfigError(
                f"--out {self.folder} holds a batch with other settings: {differs}; give the same ones, or another folder"
            )
        return run_id

    def _record(self, number: int, line: str) -> Record:
        try:
            return Record.model_validate_json(line)
        except ValidationError as unreadable:
            why = unreadable.errors()[0]["msg"]
            raise ConfigError(
                f"{self.folder / RESULTS} line {number} is no result: {why}; delete that line, and its sample runs again"
            ) from None

    def _lines(self, name: str) -> Iterator[str]:
        """The file's whole lines. A torn last line, of a write that a kill or a full disk cut, is cut off."""
        path = self.folder / name
        if not path.exists():
            return
        with path.open("rb+") as file:
            end = 0
            for line in file:
                if not line.endswith(b"\n"):
                    file.truncate(end)
                    return
                end += len(line)
                yield line.decode(errors="replace")

    def _drop_unrecorded(self) -> None:
        """Conversations whose sample got no record: it runs again."""
        ended = {record.session_id for record in self.records}
        lines = list(self._lines(TRAJECTORIES))
        kept = [line for line in lines if json.loads(line)["session_id"] in ended]
        if len(kept) < len(lines):
            self.write(TRAJECTORIES, "".join(kept))

    def _append(self, name: str, line: dict[str, Any]) -> None:
        """Raises StorageError; the next run cuts off what a full disk tore."""
        try:
            with (self.folder / name).open("ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as refused:
            raise StorageError(
                f"{self.folder / name} cannot be written: {refused}; free some space, then run the same command again"
            ) from refused


def _short(value: Any) -> str:
    if isinstance(value, tuple) and len(value) > 4:
        return f"{len(value)} ids ({', '.join(value[:2])}, ...)"
    return json.dumps(value)
