"""Every failure of the stack, typed, and the one boundary it belongs to.

    StackError
    ├── ConfigError                 what the user wrote cannot work
    │   └── SetupError              something the machine needs is missing
    │       └── DatasetError        a dataset, split, column or row that was asked for is not there
    │           ├── DatasetGated    the hub wants a token for it, or another one
    │           ├── HubUnreachable  no answer, or offline and not in the cache
    │           └── DatasetCorrupt  the bytes are not those that the checksum tells of
    ├── ClientError                 the caller's request cannot be served
    │   ├── InvalidRequest          400  a field is missing or wrong
    │   ├── Unauthorized            401  the token is missing or unknown
    │   ├── NotFound                404  no such session or task
    │   ├── Conflict                409  the session has ended
    │   ├── ClientTimeout           a client process ran past its time and was ended
    │   └── NoOutput                a client process said it was done and left no reward
    ├── ServerError                 the agent server failed
    │   ├── ServerUnreachable       no answer for longer than the outage limit
    │   ├── ServerBusy              429  its queue is full; ask again later
    │   ├── ServerStopping          503  it drains and takes no new sessions; ask its successor
    │   ├── WorkerLost              a session's worker ended without a result
    │   ├── SessionFailed           as a trainer hears of it: no reward, with the server's own boundary and code
    │   ├── StorageError            the work directory cannot be written (read-only, ...)
    │   │   └── DiskFull
    │   └── OutOfMemory             a worker found no memory
    ├── SandboxError                the sandbox failed, not the command in it
    │   ├── ImageMissing  ImageCorrupt  SandboxStartFailed
    │   └── SandboxDied
    ├── AgentError                  the agent program raised
    │   └── SandboxLimitExceeded    its commands used more than a sandbox may; ends the session, which then is completed
    ├── ModelError                  the model's side of the conversation failed
    │   ├── ModelUnreachable        gateway or engine did not answer
    │   ├── ContextLengthExceeded   400  the prompt does not fit the context window
    │   ├── RateLimited             429  an endpoint asks for more patience than a run has
    │   ├── QuotaExhausted          402  the account at the endpoint is used up; no call will succeed
    │   ├── KeyRefused              401  the endpoint does not know the API key
    │   ├── EndpointFailed          the endpoint answered 5xx, or what cannot be read
    │   ├── EndpointRefused         the endpoint does not accept the request, for another reason than its length
    │   └── TraceIncomplete         the agent made calls that the gateway has no tokens of
    ├── GraderError                 tests could not be run or read (never a wrong patch)
    │   └── GraderTimeout
    └── Cancelled                   somebody asked for the end; not a fault

Invariant: a failure is attributed where it is raised, by its class, and recorded once. `boundary` is one of
`config, client, server, sandbox, agent, model, grader, cancel`; `code` is the class's stable name in wire and metrics.
"""


class StackError(Exception):
    """Base of all typed failures. `str(error)` says the rule, the value and the remedy."""

    boundary = "server"
    code = "internal"
    http_status = 500
    transient = False  # the same attempt may well succeed when it is made again

    def __init__(self, message: str, *, field: str | None = None):
        super().__init__(message)
        self.field = field

    def as_dict(self) -> dict[str, str]:
        """The failure as it goes into records and HTTP answers: `boundary`, `code`, `message` and, if known, `field`."""
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
    """`told`: the failure as the agent server told it, if it did."""

    code = "session_failed"

    def __init__(self, message: str, told: dict):
        super().__init__(message)
        self.boundary = str(told.get("boundary", self.boundary))
        self.code = str(told.get("code", self.code))


class StorageError(ServerError):
    code, http_status = "storage", 507


class DiskFull(StorageError):
    code = "disk_full"


class OutOfMemory(ServerError):
    """Of a worker on the machine, not of what ran in its sandbox."""

    code = "out_of_memory"


class SandboxError(StackError):
    boundary, code = "sandbox", "sandbox_error"


class ImageMissing(SandboxError):
    code = "image_missing"


class ImageCorrupt(SandboxError):
    code = "image_corrupt"


class SandboxStartFailed(SandboxError):
    code, transient = "sandbox_start", True


class SandboxDied(SandboxError):
    code, transient = "sandbox_died", True


class AgentError(StackError):
    boundary, code = "agent", "agent_error"


class SandboxLimitExceeded(AgentError):
    """`limit`: `cpu`, or another whose excess could not be ended without the sandbox."""

    code = "sandbox_limit"

    def __init__(self, limit: str):
        super().__init__(
            f"the sandbox was ended, what ran in it exceeded the limit of {limit}; see AGENT_SERVER_SANDBOX_ in `python -m agent_server --help`"
        )
        self.limit = limit


class ModelError(StackError):
    boundary, code, http_status = "model", "model_error", 502


class ModelUnreachable(ModelError):
    code, http_status = "model_unreachable", 503


class ContextLengthExceeded(ModelError):
    code, http_status = "context_length_exceeded", 400


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
