"""The output folder of an evaluation: settings, one line per finished sample, conversations.

Invariant: a line is appended whole and synced before the next sample counts, so the folder of a killed run can resume.
One process at a time works in it.
"""

import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from client.atomic_write import write_text
from client.errors import ConfigError, StorageError
from client.wire import Mode

RUN, RESULTS, TRAJECTORIES = "run.json", "results.jsonl", "trajectories.jsonl"
OPEN_SESSIONS = "open.jsonl"


class EvaluationSettings(BaseModel):
    """The options that a sample's result depends on. A resumed run must have the same ones."""

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
        fields = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {name: value for name, value in fields.items() if value is not None} | self.extra

    def differences(self, before: Self) -> str:
        """A description of the fields that changed; empty if none did."""
        pairs = ((name, getattr(before, name), getattr(self, name)) for name in type(self).model_fields)
        return "; ".join(f"{name} was {_short(old)} and is now {_short(new)}" for name, old, new in pairs if old != new)


@dataclass(frozen=True, slots=True)
class EvaluationSample:
    """One of the K sessions of a task; `index` from 0."""

    task_id: str
    index: int


class Record(BaseModel):
    """The result of one sample, a line of results.jsonl.

    It has a reward if and only if `status` is `completed`; `failed` is the infrastructure's fault, never the model's.
    Calls and tokens are the endpoint's; `lost_s`: seconds spent in the endpoint's rate limits and faults.
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


class ResultStore:
    """The output folder of one evaluation, locked within its `with`. `run_id` is the same in all runs of the folder."""

    run_id: str

    def __init__(self, folder: Path, settings: EvaluationSettings):
        """On entering: raises ConfigError if the folder has other settings, is in use, or cannot be read or written."""
        self.folder, self.settings = folder, settings
        self.records: list[Record] = []
        self._lock_descriptor = -1

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock_descriptor = os.open(self.folder, os.O_RDONLY)
            fcntl.flock(self._lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for leftover in self.folder.glob(".*.partial"):  # of a run that was killed within a write
                leftover.unlink()
            self.run_id = self._open_run()
            self.records = [self._parse_record(number, line) for number, line in enumerate(self._lines(RESULTS), 1)]
            self._drop_unrecorded_conversations()
        except BlockingIOError:
            problem = "another evaluation is running there; wait for it, or give another folder"
            raise ConfigError(f"--out {self.folder}: {problem}") from None
        except OSError as error:
            raise ConfigError(f"--out {self.folder} cannot be used: {error}") from None
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock_descriptor)

    def results(self) -> dict[EvaluationSample, Record]:
        """The last record of each sample."""
        return {EvaluationSample(record.task_id, record.sample): record for record in self.records}

    def pending_samples(self) -> list[EvaluationSample]:
        """Samples without a completed record, the first samples of all tasks first."""
        results = self.results()
        samples = [
            EvaluationSample(task, index) for index in range(self.settings.samples) for task in self.settings.tasks
        ]
        return [sample for sample in samples if sample not in results or results[sample].status != "completed"]

    def open_sessions(self) -> list[str]:
        """Server ids of sessions that an earlier run created and has no record of."""
        recorded = {record.session_id for record in self.records}
        session_ids = [json.loads(line)["session_id"] for line in self._lines(OPEN_SESSIONS)]
        return [session_id for session_id in session_ids if session_id not in recorded]

    def add_open_session(self, session_id: str) -> None:
        """Note a session that was created. Raises StorageError."""
        self._append(OPEN_SESSIONS, {"session_id": session_id})

    def clear_open_sessions(self) -> None:
        """Forget the sessions noted as open."""
        (self.folder / OPEN_SESSIONS).unlink(missing_ok=True)

    def add(self, record: Record, conversation: dict[str, Any]) -> None:
        """Append a finished sample. Raises StorageError.

        The conversation goes first: the next run drops one without a record.
        """
        if conversation and record.status == "completed" and (record.resolved or not self.settings.only_resolved):
            names = ("task_id", "sample", "session_id", "reward")
            self._append(TRAJECTORIES, conversation | {name: getattr(record, name) for name in names})
        self._append(RESULTS, record.model_dump(exclude_none=True))
        self.records.append(record)

    def write(self, name: str, text: str) -> None:
        """Replace a file whole. Raises StorageError."""
        try:
            write_text(self.folder / name, text)
        except OSError as error:
            raise self._storage_error(name, error) from error

    def _open_run(self) -> str:
        """The folder's run id, new or kept. Settings may change as long as there is no result."""
        path, has_results = self.folder / RUN, (self.folder / RESULTS).exists()
        if not has_results:
            run_id = uuid.uuid4().hex
            run = {"run_id": run_id, "settings": self.settings.model_dump(mode="json")}
            self.write(RUN, json.dumps(run, indent=2) + "\n")
            return run_id
        if not path.exists():
            raise ConfigError(f"--out {self.folder} has {RESULTS} without {RUN}; give another folder")
        try:
            content = json.loads(path.read_text())
            before, run_id = EvaluationSettings.model_validate(content["settings"]), str(content["run_id"])
        except (ValueError, KeyError, TypeError) as error:  # pydantic's is a ValueError
            raise ConfigError(f"{path} is not the {RUN} of an evaluation: {error}; give another folder") from None
        if differences := self.settings.differences(before):
            remedy = "give the same ones, or another folder"
            raise ConfigError(f"--out {self.folder} has results with other settings: {differences}; {remedy}")
        return run_id

    def _parse_record(self, number: int, line: str) -> Record:
        try:
            return Record.model_validate_json(line)
        except ValidationError as invalid:
            reason = invalid.errors()[0]["msg"]
            problem = f"{self.folder / RESULTS} line {number} is no result: {reason}"
            raise ConfigError(f"{problem}; delete that line, and its sample runs again") from None

    def _lines(self, name: str) -> Iterator[str]:
        """The file's complete lines. Truncates a partial last line, left by a kill or a full disk."""
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

    def _drop_unrecorded_conversations(self) -> None:
        """Remove the conversations of samples without a record: those samples run again."""
        recorded = {record.session_id for record in self.records}
        lines = list(self._lines(TRAJECTORIES))
        kept = [line for line in lines if json.loads(line)["session_id"] in recorded]
        if len(kept) < len(lines):
            self.write(TRAJECTORIES, "".join(kept))

    def _append(self, name: str, line: dict[str, Any]) -> None:
        """Append a line and sync. Raises StorageError; the next run truncates a partial line."""
        try:
            with (self.folder / name).open("ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._storage_error(name, error) from error

    def _storage_error(self, name: str, error: OSError) -> StorageError:
        remedy = "free some space, then run the same command again"
        return StorageError(f"{self.folder / name} cannot be written: {error}; {remedy}")


def _short(value: Any) -> str:
    if isinstance(value, tuple) and len(value) > 4:
        return f"{len(value)} ids ({', '.join(value[:2])}, ...)"
    return json.dumps(value)
