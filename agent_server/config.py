"""The server's settings: read from the environment once, validated whole, frozen.

Invariant: an unknown AGENT_SERVER_ name is an error, with the nearest known one; times that cannot work together are
refused before anything starts.
"""

import difflib
import hashlib
import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_server.api.base_urls import Address, parse_setting
from agent_server.grading.reward import parse_penalties
from agent_server.sandboxes.binds import parse_binds
from agent_server.sandboxes.limits import Limits
from client.errors import ConfigError

PREFIX = "AGENT_SERVER_"
DATA_PATH, SIF_DIR = "R2E_DATA_PATH", "R2E_SIF_DIR"  # names that Relax's users have in their scripts
OF_THE_CLIENT = {f"{PREFIX}URL"}  # may stand in the same environment
LIMIT_SETTINGS = {  # name in `/limits` -> the setting it begins with
    "train": "train_concurrency",
    "eval": "eval_concurrency",
    "sandbox_starts": "sandbox_starts",
    "gradings": "gradings",
    "queue": "queue_limit",
}


class Settings(BaseModel):
    """Field `x` is read from AGENT_SERVER_X, save `data_path` (R2E_DATA_PATH) and `sif_dir` (R2E_SIF_DIR)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data_path: Path = Field(description="parquet or JSONL file, or a folder with train.* and eval.*")
    sif_dir: Path = Field(description="folder with the images that the rows name")
    work_dir: Path = Field(description="database, scratch files, trajectories and logs")
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8600, ge=1, le=65535, description="port to listen on")
    token: str = Field("", description="bearer token that every call but health must carry; empty: none", repr=False)
    open_to_anyone: Literal["no", "yes"] = Field("no", description="`yes`: listen beyond loopback without a token")
    base_urls: str = Field(
        "", description="comma-separated URL prefixes that a session's base_url must belong to; empty: any"
    )
    train_concurrency: int = Field(16, ge=1, description="training sessions that run at once")
    eval_concurrency: int = Field(16, ge=1, description="evaluation sessions that run at once")
    sandbox_starts: int = Field(
        os.cpu_count() or 1, ge=1, description="sandboxes that start at once; default: the cores"
    )
    gradings: int = Field(
        max(1, (os.cpu_count() or 1) // 2), ge=1, description="gradings that run at once; default: half the cores"
    )
    queue_limit: int = Field(
        10_000, ge=1, description="sessions that may be queued; a further one is told to ask again later"
    )
    agent: str = Field(
        "mini", description="who works on the sessions: mini, MODULE:CLASS, or `sandbox: COMMAND`, run by bash inside"
    )
    agent_config: str = Field("tools", description="of mini: `text`, `tools`, or the path of a YAML file")
    dataset: str = Field(
        "auto",
        description="how rows are run and graded: auto (by their columns), r2e, swebench, swesmith, eval_script, or MODULE:CLASS",
    )
    exclude: Path | None = Field(
        None, description="report of `python -m agent_server golden`; the rows that failed there are left out"
    )
    default_image: str = Field("", description="image of rows that name none")
    binds: str = Field("", description="comma-separated HOST:INSIDE folders that every sandbox sees, read-only")
    setup_command: str = Field("", description="bash, run in the repository of each new sandbox before anything else")
    reward_command: str = Field(
        "", description="bash, run in the repository instead of the row's tests; the last line it prints is the reward"
    )
    grading_sandbox: Literal["fresh", "same"] = Field(
        "fresh", description="where tests run: fresh, a new sandbox, or same, the agent's own"
    )
    protected_paths: Literal["strip", "reject", "allow"] = Field(
        "strip", description="strip, reject or allow a submission's changes to tests and test configuration"
    )
    reward: Literal["binary", "partial_credit", "test_ratio", "shaped"] = Field(
        "binary", description="from the tests' outcomes: binary, partial_credit, test_ratio or shaped"
    )
    penalties: str = Field(
        "", description="added to the reward by the agent's exit status: `LimitsExceeded=-0.5,RepeatedFormatError=-0.2`"
    )
    seed: int = Field(0, description="orders the training epochs")
    session_timeout_s: float = Field(3600.0, gt=0, description="from admission to the end of grading")
    agent_timeout_s: float = Field(2400.0, gt=0, description="the agent's share of it")
    grading_timeout_s: float = Field(900.0, gt=0, description="the tests' share of it")
    sandbox_start_timeout_s: float = Field(60.0, gt=0, description="until a sandbox answers; a session starts two")
    command_timeout_s: float = Field(60.0, gt=0, description="one command of the agent")
    model_timeout_s: float = Field(600.0, gt=0, description="one model call")
    drain_timeout_s: float = Field(
        30.0,
        ge=0,
        description="after SIGTERM, how long running sessions are awaited before they are left to the next start",
    )
    record_retention_s: float = Field(
        3600.0, gt=0, description="how long the record of an ended session can be asked for"
    )
    lease_timeout_s: float = Field(
        3600.0, gt=0, description="a group none of whose sessions completes gives its row back after this"
    )
    file_retention_s: float = Field(7 * 86400.0, gt=0, description="how long trajectories, logs and leases are kept")
    sandbox_memory_mib: int = Field(
        4096, ge=64, description="resident memory and files of a sandbox; its files lie in memory"
    )
    sandbox_processes: int = Field(512, ge=8, description="processes of a sandbox at once")
    sandbox_disk_mib: int = Field(2048, ge=1, description="files that a sandbox may write")
    sandbox_cpu_s: float = Field(3600.0, gt=0, description="CPU time of a sandbox; over it the session ends")
    sandbox_network: bool = Field(
        False, description="1: sandboxes have the host's network, for rows whose tests need it; 0: none"
    )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Settings":
        """Raises ConfigError naming the variable, the rule and the value."""
        given: dict[str, Any] = {}
        for name, value in environment.items():
            if name.startswith(PREFIX) and name not in OF_THE_CLIENT:
                given[name.removeprefix(PREFIX).lower()] = value
        for field in ("data_path", "sif_dir"):
            if field in given:
                raise ConfigError(
                    f"{variable(field)} is the variable for this, not {PREFIX}{field.upper()}", field=field
                )
        given |= {
            field: environment[variable(field)]
            for field in ("data_path", "sif_dir")
            if environment.get(variable(field))
        }
        if unknown := [field for field in given if field not in cls.model_fields]:
            near = difflib.get_close_matches(unknown[0], cls.model_fields, n=1)
            hint = (
                f"did you mean {variable(near[0])}?" if near else f"known: {', '.join(map(variable, cls.model_fields))}"
            )
            raise ConfigError(f"{PREFIX}{unknown[0].upper()} is not a setting; {hint}", field=unknown[0])
        try:
            settings = cls(**given)
        except ValidationError as invalid:
            first = invalid.errors()[0]
            field = str(first["loc"][0])
            if first["type"] == "missing":
                raise ConfigError(
                    f"{variable(field)} must be set: {cls.model_fields[field].description}", field=field
                ) from None
            raise ConfigError(f"{variable(field)}={given[field]!r}: {first['msg']}", field=field) from None
        settings.check()
        return settings

    def check(self) -> None:
        """Rules between settings, and paths that must exist. Raises ConfigError."""
        needed_s = self.agent_timeout_s + self.grading_timeout_s + 2 * self.sandbox_start_timeout_s
        if self.session_timeout_s < needed_s:
            raise ConfigError(
                f"AGENT_SERVER_SESSION_TIMEOUT_S={self.session_timeout_s:g} must hold two sandbox starts, the agent and the grading:"
                f" 2 x {self.sandbox_start_timeout_s:g} + {self.agent_timeout_s:g} + {self.grading_timeout_s:g} = {needed_s:g};"
                " raise it or lower the others"
            )
        if self.command_timeout_s > self.agent_timeout_s:
            raise ConfigError(
                f"AGENT_SERVER_COMMAND_TIMEOUT_S={self.command_timeout_s:g} is longer than AGENT_SERVER_AGENT_TIMEOUT_S="
                f"{self.agent_timeout_s:g}; one command must fit into the agent's time"
            )
        if self.sandbox_disk_mib >= self.sandbox_memory_mib:
            raise ConfigError(
                f"AGENT_SERVER_SANDBOX_DISK_MIB={self.sandbox_disk_mib} must be less than AGENT_SERVER_SANDBOX_MEMORY_MIB="
                f"{self.sandbox_memory_mib}: a sandbox's files lie in memory, and its processes need some too"
            )
        if not self.token and not _is_loopback(self.host) and self.open_to_anyone != "yes":
            raise ConfigError(
                f"AGENT_SERVER_HOST={self.host} lets other machines start sessions here, and AGENT_SERVER_TOKEN is empty; set a token, listen on"
                " 127.0.0.1, or say AGENT_SERVER_OPEN_TO_ANYONE=yes",
                field="token",
            )
        parse_setting(self.base_urls)
        parse_penalties(self.penalties)
        parse_binds(self.binds)
        for field in ("data_path", "sif_dir"):
            if not (path := getattr(self, field)).exists():
                raise ConfigError(
                    f"{variable(field)}={path} does not exist; {type(self).model_fields[field].description}",
                    field=field,
                )

    @property
    def limits(self) -> dict[str, int]:
        """What may be changed while the server runs: sessions at once by mode, the gates, the queue."""
        return {name: getattr(self, setting) for name, setting in LIMIT_SETTINGS.items()}

    @property
    def sandbox_limits(self) -> Limits:
        return Limits(
            self.sandbox_memory_mib << 20, self.sandbox_processes, self.sandbox_disk_mib << 20, self.sandbox_cpu_s
        )

    @property
    def allowed_base_urls(self) -> tuple[Address, ...]:
        return parse_setting(self.base_urls)

    @property
    def address(self) -> str:
        """HOST:PORT, as a URL has it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def scratch_dir(self) -> Path:
        return self.work_dir / "scratch"

    @property
    def trajectory_dir(self) -> Path:
        return self.work_dir / "trajectories"

    @property
    def semaphore_dir(self) -> Path:
        return self.work_dir / "gates"

    @property
    def event_log(self) -> Path:
        return self.work_dir / "events.jsonl"

    @property
    def log_dir(self) -> Path:
        return self.work_dir / "logs"

    @property
    def notify_address(self) -> str:
        """Abstract Unix address (no file, no length limit) of the one server that may work in `work_dir`."""
        return "\0agent-server-" + hashlib.sha256(str(self.work_dir.resolve()).encode()).hexdigest()[:32]


def _is_loopback(host: str) -> bool:
    """A name other than localhost may mean anything, so it does not count."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def variable(field: str) -> str:
    return {"data_path": DATA_PATH, "sif_dir": SIF_DIR}.get(field, f"{PREFIX}{field.upper()}")
