"""Adapter for mini-swe-agent: its DefaultAgent and litellm models, with a Sandbox as its environment.

mini-swe-agent and litellm have side effects on import (a banner, a folder, a price list from the network), so
`preload()` imports them once, in the process that forks the workers.
Invariant: the model's key stays in the worker and never enters the sandbox.
"""

import logging
import os
import platform
import time
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from agent_server.agents.base import REFUSED, TIME_EXCEEDED, AgentResult, AgentTimeout, ModelEndpoint
from agent_server.agents.command_outputs import CommandOutputs
from agent_server.agents.submission_marker import find_submission
from agent_server.sandboxes.base import Sandbox
from client import refusals
from client.errors import (
    AgentError,
    ConfigError,
    ContextLengthExceeded,
    ModelError,
    ModelUnreachable,
    SandboxLimitExceeded,
    StackError,
)
from client.proxies import proxy_for
from client.redaction import Redaction

log = logging.getLogger(__name__)
CONFIG_DIR = Path(__file__).parent / "configs"
MODEL_TRIES = 4
MODEL_CLASSES = {"text": "LitellmTextbasedModel", "tools": "LitellmModel"}


class EnvironmentConfig(BaseModel):
    """Environment of the agent's commands: working directory and extra variables."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cwd: str = "/testbed"
    env: dict[str, str] = {}


class MiniConfig(BaseModel):
    """Agent configuration file. `agent` and `model` are passed to mini-swe-agent unchanged."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    protocol: str  # text | tools
    agent: dict[str, Any]
    model: dict[str, Any] = {}
    environment: EnvironmentConfig = EnvironmentConfig()


def load_config(name: str) -> MiniConfig:
    """Load the configuration `text` or `tools`, or a YAML file by its path. Raises ConfigError."""
    path = CONFIG_DIR / f"{name}.yaml" if name in MODEL_CLASSES else Path(name)
    try:
        config = MiniConfig.model_validate(yaml.safe_load(path.read_text()))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise ConfigError(
            f"AGENT_SERVER_AGENT_CONFIG={name} cannot be read: {error}; "
            f"set text, tools, or the path of a YAML file like {CONFIG_DIR}/tools.yaml"
        ) from error
    if config.protocol not in MODEL_CLASSES:
        raise ConfigError(f"{path}: protocol={config.protocol!r} must be one of {', '.join(MODEL_CLASSES)}")
    return config


def preload() -> None:
    """Import mini-swe-agent and litellm without their side effects, and make litellm load what it loads lazily."""
    os.environ.update(
        LITELLM_LOCAL_MODEL_COST_MAP="True",
        LITELLM_LOG="ERROR",
        MSWEA_SILENT_STARTUP="1",
        MSWEA_CONFIGURED="true",
        MSWEA_COST_TRACKING="ignore_errors",
        MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT=str(MODEL_TRIES),
    )
    import litellm
    import minisweagent.agents.default
    import minisweagent.models.litellm_model
    import minisweagent.models.litellm_textbased_model  # noqa: F401
    from litellm.litellm_core_utils import thread_pool_executor
    from litellm.llms.custom_httpx.http_handler import get_ssl_configuration

    logging.getLogger("LiteLLM").setLevel(logging.ERROR)
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    get_ssl_configuration()  # made once: it takes 0.1 s
    litellm.completion(
        model="openai/none", messages=[{"role": "user", "content": ""}], api_key="none", mock_response=""
    )
    # That call leaves a logging thread behind. Once the thread is idle it holds no lock, so that forking is safe.
    thread_pool_executor.executor.submit(int).result()


class SandboxEnvironment:
    """mini-swe-agent's Environment on a Sandbox. A command over a limit is an observation; a broken sandbox raises."""

    def __init__(self, sandbox: Sandbox, config: EnvironmentConfig, command_timeout_s: float, outputs: CommandOutputs):
        self.config = config
        self._sandbox, self._outputs = sandbox, outputs
        self._timeout_s = command_timeout_s
        self.seconds = 0.0

    def execute(self, action: dict, cwd: str = "") -> dict[str, Any]:
        from minisweagent.exceptions import Submitted

        command = action.get("command")
        if not isinstance(command, str):
            reason = f"`command` must be a string, not {type(command).__name__}"
            return {"output": "", "returncode": 1, "exception_info": reason}
        result = self._sandbox.run(command, cwd=cwd or self.config.cwd, timeout_s=self._timeout_s)
        self.seconds += result.seconds
        if result.returncode == 0 and (submission := find_submission(command, result)) is not None:
            extra = {"exit_status": "Submitted", "submission": submission}
            raise Submitted({"role": "exit", "content": submission, "extra": extra})
        return {
            "output": result.output,
            "returncode": result.returncode,
            "exception_info": self._limit_note(result.limit),
            # In place of the whole output, which mini-swe-agent keeps beside the observation.
            "extra": {"raw_output": self._outputs.keep(command, result.output)},
        }

    def _limit_note(self, limit: str) -> str:
        """Message for the model about the limit that ended its command."""
        everything = "the command and everything in the background"
        notes = {
            "": "",
            "time": f"the command was ended after {self._timeout_s:g} s",
            "output": "the command was ended, it printed too much",
            "memory": f"{everything} was ended, together they used too much memory",
            "processes": f"{everything} was ended, together they were too many processes",
            "disk": f"{everything} was ended, too much was written to disk; delete files before writing more",
        }
        return notes.get(limit, f"{everything} was ended at the sandbox's limit of {limit}")

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
        """See Agent.run. Sets `commands` and `model` in `seconds`. Writes the trajectory in every case."""
        from minisweagent.agents.default import DefaultAgent

        outputs = CommandOutputs(trajectory)
        environment = SandboxEnvironment(sandbox, self._config.environment, command_timeout_s, outputs)
        model = _model(self._config, endpoint)
        options = {"wall_time_limit_seconds": int(agent_timeout_s), "cost_limit": 0.0} | self._config.agent
        agent = DefaultAgent(model, environment, **options)
        started = time.monotonic()
        try:
            ending = agent.run(problem_statement)
        except SandboxLimitExceeded as exceeded:
            return AgentResult.over_limit(exceeded, agent.n_calls)
        except AgentTimeout:
            # mini-swe-agent counts a call before it makes it; the answer is the last message until the next call.
            answered = agent.n_calls if agent.messages[-1]["role"] == "assistant" else agent.n_calls - 1
            extra = {"exit_status": TIME_EXCEEDED, "submission": ""}
            agent.add_messages({"role": "exit", "content": TIME_EXCEEDED, "extra": extra})
            return AgentResult.timed_out(max(0, answered))
        except StackError:
            raise
        except Exception as error:
            answered = agent.n_calls - 1  # mini-swe-agent counts a call before it makes it
            if _is_caused_by(error, MemoryError):
                return AgentResult.out_of_memory(answered)
            if refusal := _refusal(error, answered):
                return AgentResult(REFUSED[refusal], False, "", answered)
            raise _to_stack_error(error, Redaction(endpoint.api_key)) from error
        finally:
            seconds["commands"] = environment.seconds
            seconds["model"] = time.monotonic() - started - environment.seconds
            _save_trajectory(agent, trajectory)
        status = str(ending.get("exit_status", ""))
        return AgentResult(status, status == "Submitted", str(ending.get("submission", "")), agent.n_calls)


def _save_trajectory(agent: Any, trajectory: Path) -> None:
    """Write the trajectory without the key. An error is logged, since it must not cost the session its result."""
    without_key = {"info": {"config": {"model": {"model_kwargs": {"api_key": "(left out)"}}}}}
    try:
        agent.save(trajectory, without_key)
    except (OSError, MemoryError) as error:
        log.error("the trajectory %s was not written: %r", trajectory, error)


def _model(config: MiniConfig, endpoint: ModelEndpoint) -> Any:
    """mini-swe-agent's litellm model for the session's endpoint."""
    import litellm
    from litellm.llms.custom_httpx.http_handler import get_ssl_configuration
    from minisweagent.models import litellm_model, litellm_textbased_model

    from agent_server.agents.model_replies import ReadableReplies

    module = litellm_textbased_model if config.protocol == "text" else litellm_model
    options = {"model_name": "openai/policy", "cost_tracking": "ignore_errors"} | config.model
    connection = {
        "api_base": f"{endpoint.base_url.rstrip('/')}/v1",
        "api_key": endpoint.api_key,
        "timeout": endpoint.timeout_s,
        "max_retries": 0,  # mini-swe-agent retries; two layers of retries would multiply
    }
    options["model_kwargs"] = connection | options.get("model_kwargs", {})
    litellm.client_session = ReadableReplies(
        verify=get_ssl_configuration(),
        follow_redirects=True,
        trust_env=False,
        proxy=proxy_for(options["model_kwargs"]["api_base"], os.environ) or None,
    )
    model = getattr(module, MODEL_CLASSES[config.protocol])(**options)
    model.abort_exceptions = [*model.abort_exceptions, litellm.exceptions.BadRequestError]
    return model


def _refusal(error: Exception, n_answered: int) -> type[ModelError] | None:
    """What client.refusals finds in the API's reply behind an exception; None without a reply.

    litellm judges a refusal by words and may give it another status; httpx's exception has the API's reply.
    """
    import httpx
    import litellm

    if isinstance(error, litellm.exceptions.ContextWindowExceededError):
        return ContextLengthExceeded
    cause: BaseException | None = error
    while cause:
        if isinstance(cause, httpx.HTTPStatusError):
            return refusals.classify(cause.response.status_code, cause.response.text, n_answered=n_answered)
        cause = cause.__cause__ or cause.__context__
    return None


def _is_caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Whether the exception is of this kind, or was raised while one was handled: litellm wraps what it catches."""
    while error and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error is not None


def _to_stack_error(error: Exception, redaction: Redaction) -> StackError:
    """Attribute an exception of the agent run: to the model where litellm or openai raised it, else to the agent."""
    import litellm

    text = redaction(f"{type(error).__name__}: {error}")[:1000]  # the key is removed first: the cut may part it
    unreachable = (
        litellm.exceptions.APIConnectionError,
        litellm.exceptions.Timeout,
        litellm.exceptions.ServiceUnavailableError,
    )
    connection_error = isinstance(error, litellm.exceptions.InternalServerError) and "Connection error" in text
    if isinstance(error, unreachable) or connection_error:
        return ModelUnreachable(f"the model's API did not answer: {text}")
    if type(error).__module__.startswith(("litellm", "openai")):
        return ModelError(f"the model's API refused: {text}")
    return AgentError(f"the agent raised {text}")
