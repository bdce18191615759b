"""Checks across keys, and requirements on this machine.

Invariant: every problem that can be found before the first second on a GPU is found here, without heavy imports.
`find_contradictions` reads the configuration only; every command uses it. `missing_on_this_machine` inspects paths and
programs; `run` fails on what it finds, `check` only lists it. Ports are checked when the services start.
"""

import difflib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from client.errors import SetupError
from trainer.config.schema import CLIENT_SCRIPT, Config

STARTS_PER_SESSION, AGENT_GRACE_S = 4, 5.0  # of the agent server: preparation, agent, tests, canary run
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def find_contradictions(config: Config) -> Iterator[str]:
    """Combinations that cannot work, whatever the machine."""
    server, gateway, engine = config.agent_server, config.gateway, config.engine
    rollout, evaluation = config.rollout, config.eval
    if rollout.client_timeout_s <= server.session_timeout_s:
        yield (
            f"rollout.client_timeout_s ({rollout.client_timeout_s:g}) must be longer than "
            f"agent_server.session_timeout_s ({server.session_timeout_s:g}): clients would end before their sessions"
        )
    starts_s = STARTS_PER_SESSION * server.sandbox_start_timeout_s
    work_s = starts_s + server.agent_timeout_s + AGENT_GRACE_S + server.grading_timeout_s
    if server.session_timeout_s < work_s:
        yield (
            f"agent_server.session_timeout_s ({server.session_timeout_s:g}) must hold "
            f"{STARTS_PER_SESSION} starts of sandboxes, the agent with its grace, and the grading: "
            f"{STARTS_PER_SESSION} x {server.sandbox_start_timeout_s:g} + {server.agent_timeout_s:g} "
            f"+ {AGENT_GRACE_S:g} + {server.grading_timeout_s:g} = {work_s:g}"
        )
    if server.command_timeout_s > server.agent_timeout_s:
        yield (
            f"agent_server.command_timeout_s ({server.command_timeout_s:g}) must not be longer than "
            f"agent_server.agent_timeout_s ({server.agent_timeout_s:g}), which bounds all commands of an agent"
        )
    train_size = ("rollout.group_size", rollout.group_size)
    eval_size = ("eval.samples", evaluation.samples if evaluation.tasks else 0)
    for limit_key, limit, (size_key, size) in (
        ("rollout.max_clients", rollout.max_clients, train_size),
        ("agent_server.train_concurrency", server.train_concurrency, train_size),
        ("rollout.max_clients", rollout.max_clients, eval_size),
        ("agent_server.eval_concurrency", server.eval_concurrency, eval_size),
    ):
        if limit < size:
            yield f"{limit_key} ({limit}) must hold a whole group: at least {size_key} ({size})"
    if rollout.max_tokens >= engine.max_model_len:
        yield (
            f"rollout.max_tokens ({rollout.max_tokens}) leaves no room for a prompt: "
            f"it must be less than engine.max_model_len ({engine.max_model_len})"
        )
    if evaluation.every_steps and not evaluation.tasks:
        yield f"eval.every_steps ({evaluation.every_steps}) has no effect while eval.tasks is 0: set eval.tasks"
    ports = {"gateway.port": gateway.port}
    if server.url is None:
        ports["agent_server.port"] = server.port
        for key in ("data_path", "sif_dir"):
            if getattr(server, key) is None:
                yield (
                    f"agent_server.{key} is missing: the agent server of this run needs it; "
                    "set it, or set agent_server.url"
                )
    elif urlsplit(server.url).hostname not in LOOPBACK and urlsplit(gateway.url).hostname in (*LOOPBACK, "0.0.0.0"):
        yield (
            f"agents at agent_server.url ({server.url}) cannot reach the gateway at {gateway.url}: "
            "set gateway.public_url and gateway.host"
        )
    for key, port in ports.items():
        for other, taken in ports.items():
            if other < key and taken == port:
                yield f"{other} and {key} are both {port}: set different ports"


def missing_on_this_machine(config: Config) -> list[str]:
    """Paths and programs that the run needs and this machine lacks, one message each."""
    problems = []
    model_json = config.model.path / "config.json"
    if not model_json.is_file():
        problems.append(
            f"model.path ({config.model.path}) has no config.json: set the folder of a Hugging Face-format model"
        )
    else:
        window = json.loads(model_json.read_bytes()).get("max_position_embeddings")
        if window and window < config.engine.max_model_len:
            problems.append(
                f"engine.max_model_len ({config.engine.max_model_len}) must not exceed the model's {window} positions"
            )
    resume_from = config.checkpoint.resume_from
    if resume_from and not resume_from.is_dir():
        problems.append(f"checkpoint.resume_from ({resume_from}) does not exist.{did_you_mean_path(resume_from)}")
    if config.agent_server.url is None:
        for key in ("data_path", "sif_dir"):
            path = getattr(config.agent_server, key)
            if path is not None and not path.exists():
                problems.append(f"agent_server.{key} ({path}) does not exist.{did_you_mean_path(path)}")
    default_client = str(CLIENT_SCRIPT) in config.rollout.client_command
    if default_client and not any(map(shutil.which, ("/usr/bin/python3", "python3"))):
        problems.append("the client needs a python3; none is in /usr/bin or on the PATH: install one")
    return problems


def require_machine(config: Config) -> None:
    """Raise SetupError with everything that `missing_on_this_machine` finds."""
    if problems := missing_on_this_machine(config):
        raise SetupError(
            "\n".join(["this machine lacks what the run needs:", *(f"  - {problem}" for problem in problems)])
        )


def did_you_mean(name: str, valid_names: list[str]) -> str:
    """A suggestion to append to an error message: the valid name closest to `name`, or "" where none is close."""
    closest = difflib.get_close_matches(name, valid_names, n=1, cutoff=0.5)
    return f" Did you mean {closest[0]}?" if closest else ""


def did_you_mean_path(path: Path) -> str:
    """`did_you_mean` among the files in the folder of `path`."""
    return did_you_mean(str(path), [str(entry) for entry in path.parent.iterdir()] if path.parent.is_dir() else [])
