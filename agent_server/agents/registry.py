"""Loads the agent that AGENT_SERVER_AGENT names.

Invariant: a setting that `load_agent` accepts when the server starts gives every worker its agent.
"""

import importlib
import inspect

from agent_server.agents import mini
from agent_server.agents.base import Agent
from agent_server.config import Settings
from client.errors import ConfigError

IN_SANDBOX = "sandbox:"
FORMS = f"it must be mini, MODULE:CLASS, or `{IN_SANDBOX} COMMAND`"


def load_agent(settings: Settings) -> Agent:
    """Create the agent that the settings name. Raises ConfigError."""
    setting = settings.agent
    if setting == "mini":
        return mini.MiniAgent(mini.load_config(settings.agent_config))
    if setting.startswith(IN_SANDBOX):
        return _command_agent(setting)
    return _custom_agent(setting)


def preload_agent(settings: Settings) -> None:
    """Import the agent's modules once, in the process that forks the workers. Raises ConfigError."""
    if settings.agent == "mini":
        mini.preload()
    load_agent(settings)


def _command_agent(setting: str) -> Agent:
    from agent_server.agents.command import CommandAgent  # imports aiohttp: 17 MB that the other agents do not need

    if command := setting.removeprefix(IN_SANDBOX).strip():
        return CommandAgent(command)
    raise ConfigError(f"AGENT_SERVER_AGENT={setting!r} names no command; {FORMS}", field="agent")


def _custom_agent(setting: str) -> Agent:
    module, _, name = setting.partition(":")
    if not (module and name):
        raise ConfigError(f"AGENT_SERVER_AGENT={setting!r}: {FORMS}", field="agent")
    try:
        agent = getattr(importlib.import_module(module), name)()
    except Exception as error:
        raise ConfigError(
            f"AGENT_SERVER_AGENT={setting!r} cannot be loaded: {type(error).__name__}: {error}; "
            "the module must be importable (set PYTHONPATH) and the class must take no arguments",
            field="agent",
        ) from error
    _check_signature(agent, setting)
    return agent


def _check_signature(agent: Agent, setting: str) -> None:
    """Raises ConfigError where `agent.run` does not accept the arguments of Agent.run."""
    expected = inspect.signature(Agent.run)
    keywords = {
        name: None for name, parameter in expected.parameters.items() if parameter.kind is parameter.KEYWORD_ONLY
    }
    try:
        inspect.signature(agent.run).bind("", None, None, **keywords)
    except (AttributeError, TypeError) as error:
        raise ConfigError(
            f"AGENT_SERVER_AGENT={setting!r} is not an agent: {error}; "
            f"it must have `run{expected}`, see agent_server/agents/base.py",
            field="agent",
        ) from error
