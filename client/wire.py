"""The contract's requests, results and states, as both sides read them.

Invariant: fields are added, never renamed or removed; units stand in the names. A `reward` is present if and only if
`status` is `completed`.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from client.errors import InvalidRequest

Mode = Literal["train", "eval"]
Name = Annotated[str, Field(min_length=1, max_length=256)]


class Status(StrEnum):
    """A session's life: queued -> running -> grading -> completed, or failed or cancelled from any of the first three."""

    QUEUED = "queued"
    RUNNING = "running"
    GRADING = "grading"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return self in (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


EXIT_CODES = {Status.COMPLETED: 0, Status.FAILED: 1, Status.CANCELLED: 143}
EXIT_UNREACHABLE = 75


class SessionRequest(BaseModel):
    """Body of `POST /sessions`. Unknown fields are ignored, so that newer clients work with older servers.

    `session_id` is the client's own name for the session: the same one again answers the same server session.
    `base_url` is where the agent's model calls go (`/v1/chat/completions` is appended), with `api_key` as bearer token.
    `run_id` is the trainer's name space: sessions, groups and epochs of different runs know nothing of each other.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    session_id: Name
    group_id: Name
    mode: Mode
    base_url: Annotated[
        str, Field(pattern=r"^https?://[!-~]+$")
    ]  # ASCII: what counts as space beyond it differs from reader to reader
    api_key: Annotated[str, Field(min_length=1, max_length=4096)]
    task_id: Name | None = None
    run_id: Annotated[str, Field(max_length=256)] = ""
    metadata: dict[str, Any] = {}

    @classmethod
    def parse(cls, body: Any) -> "SessionRequest":
        """Raises InvalidRequest naming the first field that is missing or wrong, the rule, and the value's type."""
        if not isinstance(body, dict):
            raise InvalidRequest(
                f"the body must be a JSON object, not {type(body).__name__}; send Content-Type: application/json"
            )
        try:
            return cls.model_validate(body)
        except ValidationError as invalid:
            first = invalid.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            got = "it is missing" if first["type"] == "missing" else f"got {first['input']!r:.80}"
            raise InvalidRequest(f"field '{field}': {first['msg']}; {got}", field=field) from None


class SessionView(BaseModel):
    """Answer of `GET /sessions/ID`; the last fields are set only when `status` is `completed`.

    `agent_exit_status` is the agent's own word for its ending (Submitted, LimitsExceeded, TimeExceeded, ...).
    `error` has `boundary`, `code` and `message` when `status` is `failed` or `cancelled`.
    """

    session_id: str
    client_session_id: str
    status: Status
    exit_code: int | None = None
    error: dict[str, Any] | None = None
    agent_exit_status: str | None = None
    submission: str | None = None
    reward: float | None = None
    n_calls: int | None = None
    task_id: str | None = None
    grade: dict[str, Any] | None = None
    seconds: dict[str, float] = {}
    cpu_seconds: dict[str, float] = {}
    peak_memory_bytes: int | None = None
