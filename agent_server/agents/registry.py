"""Which agent works on the sessions: what AGENT_SERVER_AGENT names.

Invariant: a name that `load_agent` accepts at the server's start gives every worker its agent.
"""

import importlib
import inspect

from agent_server.agents import mini
from agent_server.agents.base import Agent
from agent_server.agents.command import CommandAgent
from agent_server.config import Settings
from client.errors import ConfigError

IN_SANDBOX = "sandbox:"
FORMS = f"it must be mini, MODULE:CLASS, or `{IN_SANDBOX} COMMAND`"


def load_agent(settings: Settings) -> Agent:
    """A new agent of the kind that the settings name. Raises ConfigError."""
    named = settings.agent
    if named == "mini":
        return mini.MiniAgent(mini.load_config(settings.agent_config))
    if named.startswith(IN_SANDBOX):
        if command := named.removeprefix(IN_SANDBOX).strip():
            return CommandAgent(command)
        raise ConfigError(f"AGENT_SERVER_AGENT={named!r} names no command; {FORMS}", field="agent")
    module, _, name = named.partition(":")
    if not (module and name):
        raise ConfigError(f"AGENT_SERVER_AGENT={named!r}: {FORMS}", field="agent")
    try:
        agent = getattr(importlib.import_module(module), name)()
    except Exception as broken:
        raise ConfigError(
            f"AGENT_SERVER_AGENT={named!r} gives no agent: {type(broken).__name__}: {broken}; the module must be importable (set PYTHONPATH)"
            f" and the class take no arguments",
            field="agent",
        ) from broken
    _check_run(agent, named)
    return agent


def preload_agent(settings: Settings) -> None:
    """In the process that forks workers: import what takes long, once."""
    if settings.agent == "mini":
        mini.preload()
    load_agent(settings)


def _check_run(agent: Agent, named: str) -> None:
    wanted = inspect.signature(Agent.run)
    keywords = {name: None for name, of in wanted.parameters.items() if of.kind is of.KEYWORD_ONLY}
    try:
        inspect.signature(agent.run).bind("", None, None, **keywords)
    except (AttributeError, TypeError) as unfit:
        raise ConfigError(
            f"AGENT_SERVER_AGENT={named!r} is no agent: {unfit}; it must have `run{wanted}`, see agent_server/agents/base.py",
            field="agent",
        ) from unfit
