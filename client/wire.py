"""Requests, results, states and files of the contract between trainer and agent server.

Invariant: fields are added, never renamed or removed; units stand in the names. A `reward` is present if and only if
`status` is `completed`.

Files of a client process. Each is written through a temporary file and a rename, so it is whole or absent.
- RELAX_OUTPUT_JSON, on exit code 0: `{"reward": number, "metadata": {"exit_status", "submission", "n_calls", ...}}`.
- `error.json` (ERROR_FILE) in RELAX_SESSION_IO_DIR, on every other exit code:
  `{"boundary": str, "code": str, "message": str}`, optionally `"field": str`. It is the agent server's `error` object
  if the server failed the session or refused the request, else the client's own, with the boundaries and codes of
  client/errors.py: server/server_unreachable for exit code 75, cancel/cancelled for 143, config/config_invalid for a
  missing or wrong variable. Without RELAX_SESSION_IO_DIR it is not written. A client killed by a signal leaves none,
  and so may another client: the exit code alone decides how the session ended.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from client.errors import InvalidRequest

Mode = Literal["train", "eval"]
Name = Annotated[str, Field(min_length=1, max_length=256)]


class Status(StrEnum):
    """States of a session: queued, running, grading, completed; from the first three also failed or cancelled."""

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
ERROR_FILE = "error.json"
SECRET_FIELDS = ("session_id", "api_key")  # Relax's clients use one value for both
PATTERN_RULES = {
    "base_url": "must be http://HOST:PORT/PATH or https://..., in ASCII, without spaces, user, query and fragment",
    "api_key": "must be printable ASCII that neither begins nor ends with a space",
}


class SessionRequest(BaseModel):
    """Body of `POST /sessions`. Unknown fields are ignored, so that newer clients work with older servers.

    `session_id` is the client's own name for the session: the same request again gives the same server session.
    `base_url` gets the agent's model calls (`/v1/chat/completions` is appended), with `api_key` as bearer token.
    `api_key` is a secret, and so is a `session_id` with the same value.
    `run_id` is the trainer's name space: sessions, groups and epochs of different runs are independent.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    session_id: Name
    group_id: Name
    mode: Mode
    # ASCII only: libraries differ in what counts as a space beyond it. No user and password: they would take the place
    # of the key in the request. No query and no fragment: a path is appended.
    base_url: Annotated[str, Field(pattern=r"""^https?://[!"$-.0->A-~]+(/[!"$->@-~]*)?$""")]
    # What an HTTP header can carry.
    api_key: Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[!-~]([ -~]*[!-~])?$")]
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
            value = "it is missing" if first["type"] == "missing" else f"got {_describe(field, first['input'])}"
            rule = PATTERN_RULES[field] if first["type"] == "string_pattern_mismatch" else first["msg"]
            raise InvalidRequest(f"field '{field}': {rule}; {value}", field=field) from None


def _describe(field: str, value: Any) -> str:
    """A wrong value for an error message; of a secret its type and length only."""
    if field in SECRET_FIELDS or (isinstance(value, str) and "@" in value):  # a password in a URL
        return f"{type(value).__name__} of {len(value)} characters" if isinstance(value, str) else type(value).__name__
    return f"{value!r:.80}"


def _to_error(error: Any) -> Any:
    """Relax's server gives a text, an empty one where nothing failed."""
    if isinstance(error, str):
        return {"boundary": "server", "code": "session_failed", "message": error} if error else None
    return error


class SessionView(BaseModel):
    """Response to `GET /sessions/ID`. `reward`, `submission` and the like are set only if `status` is `completed`.

    `agent_exit_status` is the agent's own exit status (Submitted, LimitsExceeded, TimeExceeded, ...).
    `error` has `boundary`, `code` and `message` when `status` is `failed` or `cancelled`.
    `client_session_id` is the key's fingerprint (client/redaction.py) where the client's name is the key.
    """

    session_id: str
    client_session_id: str = ""
    status: Status
    exit_code: int | None = None
    error: Annotated[dict[str, Any] | None, BeforeValidator(_to_error)] = None
    agent_exit_status: str | None = None
    submission: str | None = None
    reward: float | None = None
    n_calls: int | None = None
    task_id: str | None = None
    grade: dict[str, Any] | None = None
    seconds: dict[str, float] = {}
    cpu_seconds: dict[str, float] = {}
    peak_memory_bytes: int | None = None
