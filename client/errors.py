"""The tree of typed errors, each of one boundary.

    StackError
    ├── ConfigError                 the configuration is invalid
    │   └── SetupError              a requirement of the machine is missing
    │       └── DatasetError        a dataset, split, column or row does not exist
    │           ├── DatasetGated    the hub requires a token, or another one
    │           ├── HubUnreachable  no response, or offline and not in the cache
    │           └── DatasetCorrupt  the data does not match its checksum
    ├── ClientError                 the caller's request cannot be served
    │   ├── InvalidRequest          400  a field is missing or wrong
    │   ├── Unauthorized            401  the token is missing or unknown
    │   ├── NotFound                404  no such session or task
    │   ├── Conflict                409  the name belongs to another request, or the session has ended
    │   ├── ClientTimeout           a client process exceeded its time limit and was killed
    │   └── NoOutput                a client process exited 0 without a reward in its output
    ├── ServerError                 the agent server failed
    │   ├── ServerUnreachable       no response for longer than the outage limit
    │   ├── ServerBusy              429  its queue is full; retry later
    │   ├── ServerStopping          503  it is draining and takes no new sessions; retry at its successor
    │   ├── WorkerLost              a session's worker ended without a result
    │   ├── SessionFailed           a failed session at the trainer, with the server's boundary and code
    │   ├── StorageError            the work directory cannot be written (read-only, ...)
    │   │   └── DiskFull
    │   └── OutOfMemory             a worker could not allocate memory
    ├── SandboxError                the sandbox failed, not the command in it
    │   ├── ImageMissing  ImageCorrupt  SandboxStartFailed
    │   ├── SandboxFileError        a file cannot be written inside, for example for lack of space
    │   └── SandboxDied
    ├── AgentError                  the agent program raised
    │   └── SandboxLimitExceeded    its commands exceeded a sandbox limit; the session ends as completed
    ├── ModelError                  a model call failed
    │   ├── ModelUnreachable        no response from the gateway or the engine
    │   ├── ContextLengthExceeded   400  the prompt exceeds the context window
    │   ├── ConversationRefused     400  the API refuses what the policy added to a conversation
    │   ├── RateLimited             429  the endpoint asks for a longer wait than a run allows
    │   ├── QuotaExhausted          402  the account's quota at the endpoint is used up
    │   ├── KeyRefused              401  the endpoint does not accept the API key
    │   ├── EndpointFailed          the endpoint responded with 5xx or with malformed data
    │   ├── EndpointRefused         the endpoint does not accept the request, for another reason than its length
    │   └── TraceIncomplete         the agent made calls that the gateway has no tokens of
    ├── GraderError                 tests could not be run or parsed (never a wrong patch)
    │   └── GraderTimeout
    └── Cancelled                   the session was cancelled on request; not a fault

Invariant: an error is attributed by its class where it is raised, and recorded once. `boundary` is one of
`config, client, server, sandbox, agent, model, grader, cancel`; `code` is the class's stable name in wire and metrics.
"""

from typing import Any


class StackError(Exception):
    """Base of all typed errors. The message gives the rule, the value and the remedy."""

    boundary = "server"
    code = "internal"
    http_status = 500
    transient = False  # True if a retry may succeed

    def __init__(self, message: str, *, field: str | None = None):
        super().__init__(message)
        self.field = field

    def as_dict(self) -> dict[str, str]:
        """The error object of records and HTTP responses: `boundary`, `code`, `message` and, if known, `field`."""
        record = {"boundary": self.boundary, "code": self.code, "message": str(self)}
        return record | {"field": self.field} if self.field else record


class ConfigError(StackError):
    boundary, code = "config", "config_invalid"


class SetupError(ConfigError):
    code = "setup_incomplete"


class DatasetError(SetupError):
    code = "dataset"


class DatasetGated(DatasetError):
    code = "dataset_gated"


class HubUnreachable(DatasetError):
    code, transient = "hub_unreachable", True


class DatasetCorrupt(DatasetError):
    code = "dataset_corrupt"


class ClientError(StackError):
    boundary, code, http_status = "client", "bad_request", 400


class InvalidRequest(ClientError):
    code = "invalid_request"


class Unauthorized(ClientError):
    code, http_status = "unauthorized", 401


class NotFound(ClientError):
    code, http_status = "not_found", 404


class Conflict(ClientError):
    code, http_status = "conflict", 409


class ClientTimeout(ClientError):
    code = "client_timeout"


class NoOutput(ClientError):
    code = "no_output"


class ServerError(StackError):
    boundary, code = "server", "server_error"


class ServerUnreachable(ServerError):
    code, http_status = "server_unreachable", 503


class ServerBusy(ServerError):
    code, http_status = "busy", 429


class ServerStopping(ServerError):
    code, http_status = "stopping", 503


class WorkerLost(ServerError):
    code = "worker_lost"
    transient = True


class SessionFailed(ServerError):
    """`reported`: the content of the client's error.json, empty if there is none."""

    code = "session_failed"

    def __init__(self, message: str, reported: dict[str, Any]):
        super().__init__(message)
        self.boundary = str(reported.get("boundary", self.boundary))
        self.code = str(reported.get("code", self.code))


class StorageError(ServerError):
    code, http_status = "storage", 507


class DiskFull(StorageError):
    code = "disk_full"


class OutOfMemory(ServerError):
    """Raised for a worker process, not for commands in its sandbox."""

    code = "out_of_memory"


class SandboxError(StackError):
    boundary, code = "sandbox", "sandbox_error"


class ImageMissing(SandboxError):
    code = "image_missing"


class ImageCorrupt(SandboxError):
    code = "image_corrupt"


class SandboxStartFailed(SandboxError):
    code, transient = "sandbox_start", True


class SandboxFileError(SandboxError):
    code = "sandbox_file"


class SandboxDied(SandboxError):
    code, transient = "sandbox_died", True


class AgentError(StackError):
    boundary, code = "agent", "agent_error"


class SandboxLimitExceeded(AgentError):
    """`limit`: `cpu`, or another one that only ending the sandbox could enforce."""

    code = "sandbox_limit"

    def __init__(self, limit: str):
        remedy = "see AGENT_SERVER_SANDBOX_ in `python -m agent_server --help`"
        super().__init__(f"commands exceeded the sandbox limit of {limit} and the sandbox was ended; {remedy}")
        self.limit = limit


class ModelError(StackError):
    boundary, code, http_status = "model", "model_error", 502


class ModelUnreachable(ModelError):
    code, http_status = "model_unreachable", 503


class ContextLengthExceeded(ModelError):
    code, http_status = "context_length_exceeded", 400


class ConversationRefused(ModelError):
    code, http_status = "conversation_refused", 400


class RateLimited(ModelError):
    code, http_status = "rate_limited", 429


class QuotaExhausted(ModelError):
    code, http_status = "quota_exhausted", 402


class KeyRefused(ModelError):
    code, http_status = "key_refused", 401


class EndpointFailed(ModelError):
    code = "endpoint_failed"


class EndpointRefused(ModelError):
    code = "endpoint_refused"


class TraceIncomplete(ModelError):
    code = "trace_incomplete"


class GraderError(StackError):
    boundary, code = "grader", "grader_error"


class GraderTimeout(GraderError):
    code = "grader_timeout"


class Cancelled(StackError):
    boundary, code = "cancel", "cancelled"
