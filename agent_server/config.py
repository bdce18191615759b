"""Settings of the agent server: read from the environment once, validated whole, frozen, typed.

Invariant: an unknown AGENT_SERVER_ variable is an error that names the nearest known one (service links of Kubernetes
are left out); timeouts that cannot work together are refused before anything starts. Settings survive `model_dump_json`
and `model_validate_json`: that is how they reach the fork server.
"""

import difflib
import hashlib
import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_server.relax_names import take_relax_names
from agent_server.sandboxes.limits import Limits
from agent_server.setting_types import BaseUrls, Binds, Networks, Penalties
from client.errors import ConfigError
from client.proxies import ENVIRONMENT, check_proxies
from client.service_links import without_service_links

PREFIX = "AGENT_SERVER_"
VARIABLES = {"data_path": "R2E_DATA_PATH", "sif_dir": "R2E_SIF_DIR"}  # names from the scripts of Relax's users
AGENT_GRACE_S = 5.0  # of an agent beyond its own limit, for a last command that submits
CLIENT_VARIABLES = {f"{PREFIX}URL"}  # the client's; may stand in the same environment
LIMIT_SETTINGS = {  # name in `/limits` -> the setting with its initial value
    "train": "train_concurrency",
    "eval": "eval_concurrency",
    "sandbox_starts": "sandbox_starts",
    "gradings": "gradings",
    "queue": "queue_limit",
}


class Settings(BaseModel):
    """Field `x` is read from AGENT_SERVER_X, but `data_path` from R2E_DATA_PATH and `sif_dir` from R2E_SIF_DIR."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data_path: Path = Field(description="parquet or JSONL file, or a folder with train.* and eval.*, or with datasets")
    sif_dir: Path = Field(description="folder with the rows' images")
    work_dir: Path = Field(description="database, scratch files, trajectories and logs")
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8600, ge=1, le=65535, description="port to listen on")
    token: str = Field(
        "", description="bearer token of every call but health; empty: only PATCH /limits needs one", repr=False
    )
    open_to_anyone: Literal["no", "yes"] = Field("no", description="`yes`: listen beyond loopback without a token")
    base_urls: BaseUrls = Field(
        (), description="comma-separated URL prefixes, one of which a session's base_url must have; empty: any"
    )
    proxies: Literal["direct", "environment"] = Field(
        "direct",
        description="model calls: direct, or by HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY of the `environment`;"
        " clients, evaluation and trainer read it too",
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
        10_000, ge=1, description="queued sessions at once; a further one gets 429 and Retry-After"
    )
    agent: str = Field(
        "mini",
        description="agent of the sessions: mini, MODULE:CLASS, or `sandbox: COMMAND`, run by bash in the sandbox",
    )
    agent_config: str = Field("tools", description="configuration of mini: `text`, `tools`, or a YAML file")
    dataset: str = Field(
        "auto",
        description="format of the rows: auto (by columns), a name of docs/datasets.md (swebench), or MODULE:CLASS",
    )
    exclude: Path | None = Field(
        None, description="report of `python -m agent_server validate`; rows that failed there are left out"
    )
    unusable_rows: Literal["refuse", "skip"] = Field(
        "refuse",
        description="rows that cannot be graded, or whose image is missing: refuse to start, or skip them and list them"
        " with their reasons in unusable_rows.jsonl in the work directory",
    )
    default_image: str = Field("", description="image of rows without one")
    binds: Binds = Field((), description="comma-separated HOST:INSIDE folders, mounted read-only into every sandbox")
    setup_command: str = Field("", description="bash command, run first in the repository of each new sandbox")
    reward_command: str = Field(
        "", description="bash command, run in place of the row's tests; the last line it prints is the reward"
    )
    grading_sandbox: Literal["fresh", "same"] = Field(
        "fresh", description="sandbox of the tests: fresh (a new one) or same (the agent's own)"
    )
    protected_paths: Literal["strip", "reject", "allow"] = Field(
        "strip", description="a submission's changes to tests and test configuration: strip, reject or allow"
    )
    canary: Literal["off", "share", "always"] = Field(
        "share",
        description="canary run of sessions that would be rewarded: off, share (of the training sessions one in four,"
        " and all in eval) or always",
    )
    reward: Literal["binary", "partial_credit", "test_ratio", "shaped"] = Field(
        "binary", description="reward from the tests' outcomes: binary, partial_credit, test_ratio or shaped"
    )
    penalties: Penalties = Field(
        {},
        description="added to the reward by the agent's exit status,"
        " for example LimitsExceeded=-0.5,RepeatedFormatError=-0.2",
    )
    shuffle: bool = Field(True, description="1: each training epoch has an order of its own; 0: that of the file")
    seed: int = Field(0, description="seed of the training epochs' order")
    session_timeout_s: float = Field(3900.0, gt=0, description="from admission to the end of grading")
    agent_timeout_s: float = Field(2400.0, gt=0, description="the agent's share of it")
    grading_timeout_s: float = Field(900.0, gt=0, description="the tests' share of it")
    sandbox_start_timeout_s: float = Field(
        60.0, gt=0, description="one sandbox start; a session starts two, and one for a canary run"
    )
    command_timeout_s: float = Field(60.0, gt=0, description="one command of the agent")
    model_timeout_s: float = Field(600.0, gt=0, description="one model call")
    drain_timeout_s: float = Field(
        30.0,
        ge=0,
        description="wait for running sessions after SIGTERM; those that run longer are left to the next start",
    )
    client_timeout_s: float = Field(
        300.0,
        ge=0,
        description="a session is cancelled when its client has neither waited nor asked for so long;"
        " 0: never, for callers who poll rarely",
    )
    record_retention_s: float = Field(3600.0, gt=0, description="time that the record of an ended session is kept")
    lease_timeout_s: float = Field(
        3600.0, gt=0, description="idle time after which a group without a completed session gives its row back"
    )
    file_retention_s: float = Field(7 * 86400.0, gt=0, description="time that trajectories, logs and leases are kept")
    worker_memory_mib: int = Field(
        1024, ge=64, description="memory of a session's worker itself, beyond what all workers share"
    )
    prepared_mib: int = Field(
        10_240,
        ge=0,
        description="disk for prepared repositories, each made by the first session of its row; 0: none are kept",
    )
    sandbox_memory_mib: int = Field(
        4096, ge=64, description="resident memory and files of a sandbox; files lie in memory"
    )
    sandbox_processes: int = Field(512, ge=8, description="processes of a sandbox at once")
    sandbox_disk_mib: int = Field(2048, ge=1, description="files written by a sandbox")
    sandbox_cpu_s: float = Field(3600.0, gt=0, description="CPU time of a sandbox; over it the session ends")
    sandbox_threads: int = Field(
        0, ge=0, description="threads of a numeric library in a sandbox; 0: the cores divided by the sessions at once"
    )
    sandbox_network: bool = Field(
        False, description="1: sandboxes reach public IPv4 addresses, for tests that need them; 0: they have no network"
    )
    sandbox_allowed_networks: Networks = Field(
        (),
        description="comma-separated private IPv4 networks, such as 10.1.0.0/16, that they reach too;"
        " this machine's own addresses they never reach",
    )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Settings":
        """Raises ConfigError with the variable, the rule, the value and the remedy."""
        values: dict[str, str] = {}
        for name, value in without_service_links(environment, PREFIX).items():
            if name.startswith(PREFIX) and name not in CLIENT_VARIABLES:
                values[name.removeprefix(PREFIX).lower()] = value
        names = take_relax_names(values, PREFIX)
        for field, name in VARIABLES.items():
            if field in values:
                raise ConfigError(f"{PREFIX}{field.upper()} is not a setting; set {name}", field=field)
            if environment.get(name):
                values[field] = environment[name]
        if unknown := [field for field in values if field not in cls.model_fields]:
            near = difflib.get_close_matches(unknown[0], cls.model_fields, n=1)
            known = ", ".join(map(variable, cls.model_fields))
            hint = f"did you mean {variable(near[0])}?" if near else f"known: {known}"
            raise ConfigError(f"{PREFIX}{unknown[0].upper()} is not a setting; {hint}", field=unknown[0])
        try:
            settings = cls.model_validate(values)
        except ValidationError as invalid:
            raise cls._config_error(invalid, values, names) from None
        if settings.proxies == ENVIRONMENT:
            try:
                check_proxies(environment)
            except ValueError as wrong:
                raise ConfigError(str(wrong), field="proxies") from None
        settings.check()
        return settings

    @classmethod
    def _config_error(
        cls, invalid: ValidationError, values: Mapping[str, str], names: Mapping[str, str]
    ) -> ConfigError:
        """The first error, in the words of the environment. `names`: variables by setting, where Relax's were used."""
        first = invalid.errors()[0]
        field = str(first["loc"][0])
        description, name = cls.model_fields[field].description, names.get(field, variable(field))
        if first["type"] == "missing":
            return ConfigError(f"{name} must be set: {description}", field=field)
        if first["type"] == "value_error":  # of a parser in setting_types, which gives rule and remedy
            return ConfigError(f"{name}={values[field]!r}: {first['ctx']['error']}", field=field)
        rule = first["msg"].removeprefix("Input should be ")
        return ConfigError(f"{name}={values[field]!r} must be {rule}; set another value ({description})", field=field)

    def check(self) -> None:
        """Rules between settings, and paths that must exist. Raises ConfigError."""
        starts = self.starts_per_session
        needed_s = starts * self.sandbox_start_timeout_s + self.agent_timeout_s + AGENT_GRACE_S + self.grading_timeout_s
        if self.session_timeout_s < needed_s:
            raise ConfigError(
                f"AGENT_SERVER_SESSION_TIMEOUT_S={self.session_timeout_s:g} must hold {starts} starts of sandboxes"
                f" (set-up commands count too), the agent with its grace, and the grading: {starts}"
                f" x {self.sandbox_start_timeout_s:g} + {self.agent_timeout_s:g} + {AGENT_GRACE_S:g}"
                f" + {self.grading_timeout_s:g} = {needed_s:g}; raise it or lower the others"
            )
        if self.command_timeout_s > self.agent_timeout_s:
            raise ConfigError(
                f"AGENT_SERVER_COMMAND_TIMEOUT_S={self.command_timeout_s:g} must not exceed"
                f" AGENT_SERVER_AGENT_TIMEOUT_S={self.agent_timeout_s:g}: one command must fit into the agent's time;"
                " lower it or raise the other"
            )
        if self.sandbox_disk_mib >= self.sandbox_memory_mib:
            raise ConfigError(
                f"AGENT_SERVER_SANDBOX_DISK_MIB={self.sandbox_disk_mib} must be less than"
                f" AGENT_SERVER_SANDBOX_MEMORY_MIB={self.sandbox_memory_mib}: a sandbox's files lie in memory,"
                " and its processes need some too; lower it or raise the other"
            )
        if not self.token and not _is_loopback(self.host) and self.open_to_anyone != "yes":
            raise ConfigError(
                f"AGENT_SERVER_HOST={self.host} lets other machines start sessions here, and AGENT_SERVER_TOKEN is"
                " empty; set a token, listen on 127.0.0.1, or set AGENT_SERVER_OPEN_TO_ANYONE=yes",
                field="token",
            )
        for field in VARIABLES:
            if not (path := getattr(self, field)).exists():
                description = type(self).model_fields[field].description
                raise ConfigError(f"{variable(field)}={path} does not exist; set it to a {description}", field=field)

    @property
    def limits(self) -> dict[str, int]:
        """Initial values of the limits that PATCH /limits may change: modes, semaphores, queue."""
        return {name: getattr(self, setting) for name, setting in LIMIT_SETTINGS.items()}

    @property
    def sandbox_limits(self) -> Limits:
        return Limits(
            self.sandbox_memory_mib << 20, self.sandbox_processes, self.sandbox_disk_mib << 20, self.sandbox_cpu_s
        )

    @property
    def starts_per_session(self) -> int:
        """What may take AGENT_SERVER_SANDBOX_START_TIMEOUT_S: the start and the set-up command of each sandbox (the
        agent's, the tests', the canary run's), or the start of the one that prepares the repository."""
        sandboxes = 1 if self.grading_sandbox == "same" else 2 if self.canary == "off" else 3
        return 2 * sandboxes if self.setup_command else sandboxes + (self.prepared_mib > 0)

    @property
    def threads_per_sandbox(self) -> int:
        """Threads of a numeric library in a sandbox: the sandbox's share of the cores, unless set."""
        sessions = self.train_concurrency + self.eval_concurrency
        return self.sandbox_threads or max(1, len(os.sched_getaffinity(0)) // sessions)

    @property
    def address(self) -> str:
        """HOST:PORT, as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def control_token_file(self) -> Path:
        return self.work_dir / "control_token"

    @property
    def scratch_dir(self) -> Path:
        return self.work_dir / "scratch"

    @property
    def trajectory_dir(self) -> Path:
        return self.work_dir / "trajectories"

    @property
    def prepared_dir(self) -> Path:
        return self.work_dir / "prepared"

    @property
    def semaphore_dir(self) -> Path:
        return self.work_dir / "gates"  # the folder's name since the first release: adopted workers hold locks in it

    @property
    def event_log(self) -> Path:
        return self.work_dir / "events.jsonl"

    @property
    def unusable_rows_file(self) -> Path:
        return self.work_dir / "unusable_rows.jsonl"

    @property
    def log_dir(self) -> Path:
        return self.work_dir / "logs"

    @property
    def notify_address(self) -> str:
        """Abstract Unix socket address (no file, no length limit) of the one server in `work_dir`."""
        return "\0agent-server-" + hashlib.sha256(str(self.work_dir.resolve()).encode()).hexdigest()[:32]


def _is_loopback(host: str) -> bool:
    """A name other than localhost may resolve to anything, so it does not count."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def variable(field: str) -> str:
    """Environment variable of a setting."""
    return VARIABLES.get(field, f"{PREFIX}{field.upper()}")
