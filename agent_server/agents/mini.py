"""mini-swe-agent as the session's agent: its own DefaultAgent and litellm models, with our sandbox as its environment.

mini-swe-agent and litellm act on import (banner, folder, price list from the network), so they are imported by
`preload()`, once, in the process that forks the workers.
Invariant: the model's key stays in the worker; nothing of it enters the sandbox.
"""

import logging
import os
import platform
import time
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from agent_server.agents.base import AgentResult, ModelEndpoint
from agent_server.sandboxes.base import CommandResult, Sandbox
from client.errors import (
    AgentError,
    ConfigError,
    InvalidRequest,
    ModelError,
    ModelUnreachable,
    SandboxLimitExceeded,
    StackError,
)

log = logging.getLogger(__name__)
CONFIG_DIR = Path(__file__).parent / "configs"
SUBMIT_LINE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
MODEL_ATTEMPTS = 4
MODEL_CLASSES = {"text": "LitellmTextbasedModel", "tools": "LitellmModel"}


class EnvironmentConfig(BaseModel):
    """Where commands run: working directory, extra variables."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cwd: str = "/testbed"
    env: dict[str, str] = {}


class MiniConfig(BaseModel):
    """An agent configuration file. `agent` and `model` go to mini-swe-agent as they are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    protocol: str  # text | tools
    agent: dict[str, Any]
    model: dict[str, Any] = {}
    environment: EnvironmentConfig = EnvironmentConfig()


def load_config(name: str) -> MiniConfig:
    """`text`, `tools`, or the path of a YAML file. Raises ConfigError."""
    path = CONFIG_DIR / f"{name}.yaml" if name in MODEL_CLASSES else Path(name)
    try:
        config = MiniConfig.model_validate(yaml.safe_load(path.read_text()))
    except (OSError, yaml.YAMLError, ValidationError) as unusable:
        raise ConfigError(
            f"AGENT_SERVER_AGENT_CONFIG={name}: {unusable}; give text, tools, or a YAML file like {CONFIG_DIR}/tools.yaml"
        ) from unusable
    if config.protocol not in MODEL_CLASSES:
        raise ConfigError(f"{path}: protocol={config.protocol!r} must be one of {', '.join(MODEL_CLASSES)}")
    return config


def preload() -> None:
    """Import the agent with its import-time actions off, and touch what litellm loads only at its first call."""
    os.environ.update(
        LITELLM_LOCAL_MODEL_COST_MAP="True",
        LITELLM_LOG="ERROR",
        MSWEA_SILENT_STARTUP="1",
        MSWEA_CONFIGURED="true",
        MSWEA_COST_TRACKING="ignore_errors",
        MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT=str(MODEL_ATTEMPTS),
    )
    import litellm
    import minisweagent.agents.default
    import minisweagent.models.litellm_model
    import minisweagent.models.litellm_textbased_model  # noqa: F401
    from litellm.litellm_core_utils import thread_pool_executor

    logging.getLogger("LiteLLM").setLevel(logging.ERROR)
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    litellm.completion(
        model="openai/none", messages=[{"role": "user", "content": ""}], api_key="none", mock_response=""
    )
    # That call leaves a logging thread behind. Once it has nothing to do it holds no lock, and forking is safe.
    thread_pool_executor.executor.submit(int).result()


class SandboxEnvironment:
    """mini-swe-agent's Environment over a Sandbox. A command over its limit is an observation, a broken sandbox raises."""

    def __init__(self, sandbox: Sandbox, config: EnvironmentConfig, command_timeout_s: float):
        self.config = config
        self._sandbox = sandbox
        self._timeout_s = command_timeout_s
        self.seconds = 0.0

    def execute(self, action: dict, cwd: str = "") -> dict[str, Any]:
        from minisweagent.exceptions import Submitted

        try:
            result = self._sandbox.run(action.get("command", ""), cwd=cwd or self.config.cwd, timeout_s=self._timeout_s)
        except InvalidRequest as refused:
            result = CommandResult("", 1, 0.0, str(refused))
        self.seconds += result.seconds
        first, _, rest = result.output.lstrip().partition("\n")
        if first.strip() == SUBMIT_LINE and result.returncode == 0:
            raise Submitted(
                {"role": "exit", "content": rest, "extra": {"exit_status": "Submitted", "submission": rest}}
            )
        return {
            "output": result.output,
            "returncode": result.returncode,
            "exception_info": self._limit_note(result.limit),
        }

    def _limit_note(self, limit: str) -> str:
        notes = {
            "": "",
            "time": f"the command was ended after {self._timeout_s:g} s",
            "output": "the command was ended, it printed too much",
            "memory": "the command and everything in the background was ended, together they used too much memory",
            "processes": "the command and everything in the background was ended, together they were too many processes",
            "disk": "the command and everything in the background was ended, too much was written to disk; delete files before writing more",
        }
        return notes[limit]

    def get_template_vars(self, **kwargs) -> dict[str, Any]:
        return (
            self.config.model_dump()
            | {"system": platform.system(), "machine": platform.machine(), "release": "", "version": ""}
            | kwargs
        )

    def serialize(self) -> dict:
        return {"info": {"config": {"environment": self.config.model_dump(mode="json")}}}


class MiniAgent:
    """mini-swe-agent's loop with one configuration file."""

    def __init__(self, config: MiniConfig):
        self._config = config
        self.sandbox_env = config.environment.env

    def run(
        self,
        problem_statement: str,
        sandbox: Sandbox,
        endpoint: ModelEndpoint,
        *,
        agent_timeout_s: float,
        command_timeout_s: float,
        trajectory: Path,
        seconds: dict[str, float],
    ) -> AgentResult:
        """See Agent.run. Adds `commands` and `model` to `seconds`; writes the trajectory in every case. A sandbox that was
        ended over a limit is the agent's own ending."""
        from minisweagent.agents.default import DefaultAgent

        environment = SandboxEnvironment(sandbox, self._config.environment, command_timeout_s)
        model = _model(self._config, endpoint)
        options = {"wall_time_limit_seconds": int(agent_timeout_s), "cost_limit": 0.0} | self._config.agent
        agent = DefaultAgent(model, environment, **options)
        started = time.monotonic()
        try:
            ending = agent.run(problem_statement)
        except SandboxLimitExceeded as exceeded:
            return AgentResult.over_limit(exceeded, agent.n_calls)
        except StackError:
            raise
        except Exception as raised:
            if _is_context_overflow(raised):
                answered = agent.n_calls - 1  # it counts a call before making it, and the last was refused
                return AgentResult("ContextWindowExceeded", False, "", answered)
            raise _attributed(raised) from raised
        finally:
            seconds["commands"] = environment.seconds
            seconds["model"] = time.monotonic() - started - environment.seconds
            _save(agent, trajectory)
        status = str(ending.get("exit_status", ""))
        return AgentResult(status, status == "Submitted", str(ending.get("submission", "")), agent.n_calls)


def _save(agent: Any, trajectory: Path) -> None:
    """The trajectory, without the session's key. A disk that refuses it must not cost the session its result."""
    without_key = {"info": {"config": {"model": {"model_kwargs": {"api_key": "(left out)"}}}}}
    try:
        agent.save(trajectory, without_key)
    except OSError as refused:
        log.error("the trajectory %s was not written: %s", trajectory, refused)


def _model(config: MiniConfig, endpoint: ModelEndpoint) -> Any:
    from minisweagent.models import litellm_model, litellm_textbased_model

    module = litellm_textbased_model if config.protocol == "text" else litellm_model
    options = {"model_name": "openai/policy", "cost_tracking": "ignore_errors"} | config.model
    connection = {
        "api_base": f"{endpoint.base_url.rstrip('/')}/v1",
        "api_key": endpoint.api_key,
        "timeout": endpoint.timeout_s,
        "max_retries": 0,  # mini-swe-agent retries; two layers of retries would multiply
    }
    return getattr(module, MODEL_CLASSES[config.protocol])(
        **options | {"model_kwargs": connection | options.get("model_kwargs", {})}
    )


def _is_context_overflow(raised: Exception) -> bool:
    import litellm

    return isinstance(raised, litellm.exceptions.ContextWindowExceededError) or "context_length_exceeded" in str(raised)


def _attributed(raised: Exception) -> StackError:
    """The boundary an exception of the agent's stack belongs to: the model's side where litellm raised it, else the agent."""
    import litellm

    said = f"{type(raised).__name__}: {raised}"[:1000]
    unreachable = (
        litellm.exceptions.APIConnectionError,
        litellm.exceptions.Timeout,
        litellm.exceptions.ServiceUnavailableError,
    )
    if (
        isinstance(raised, unreachable)
        or isinstance(raised, litellm.exceptions.InternalServerError)
        and "Connection error" in said
    ):
        return ModelUnreachable(f"the model's API did not answer: {said}")
    if type(raised).__module__.startswith(("litellm", "openai")):
        return ModelError(f"the model's API refused: {said}")
    return AgentError(f"the agent raised {said}")
