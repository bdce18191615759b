"""Checks across keys, and of this machine: what a configuration can say and yet not be started with.

Invariant: everything that can be known before the first second of a GPU is known here, without importing anything heavy.
`find_contradictions` reads the configuration only and belongs to every command; `missing_on_this_machine` looks at this machine's paths and
programs and belongs to `run` (`check` only mentions what it finds). Ports are tried when the services start.
"""

import difflib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from client.errors import SetupError
from trainer.config.schema import CLIENT_SCRIPT, Config

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def find_contradictions(config: Config) -> Iterator[str]:
    """Combinations that cannot work, whatever the machine."""
    server, rollout, eval, gateway, engine = (
        config.agent_server,
        config.rollout,
        config.eval,
        config.gateway,
        config.engine,
    )
    if rollout.client_timeout_s <= server.session_timeout_s:
        yield (
            f"rollout.client_timeout_s ({rollout.client_timeout_s:g}) must be longer than agent_server.session_timeout_s "
            f"({server.session_timeout_s:g}), or clients give up on sessions that are still running"
        )
    work_s = 2 * server.sandbox_start_timeout_s + server.agent_timeout_s + server.grading_timeout_s
    if server.session_timeout_s < work_s:
        yield (
            f"agent_server.session_timeout_s ({server.session_timeout_s:g}) must hold two sandbox starts, the agent and the grading: "
            f"2 x {server.sandbox_start_timeout_s:g} + {server.agent_timeout_s:g} + {server.grading_timeout_s:g} = {work_s:g}"
        )
    if server.command_timeout_s > server.agent_timeout_s:
        yield (
            f"agent_server.command_timeout_s ({server.command_timeout_s:g}) is longer than agent_server.agent_timeout_s "
            f"({server.agent_timeout_s:g}), in which all of an agent's commands must fit"
        )
    for size_key, size, limits in (
        (
            "rollout.group_size",
            rollout.group_size,
            {"rollout.max_clients": rollout.max_clients, "agent_server.train_concurrency": server.train_concurrency},
        ),
        (
            "eval.samples",
            eval.samples if eval.tasks else 0,
            {"rollout.max_clients": rollout.max_clients, "agent_server.eval_concurrency": server.eval_concurrency},
        ),
    ):
        for limit_key, limit in limits.items():
            if limit < size:
                yield f"{limit_key} ({limit}) must hold a whole group: at least {size_key} ({size})"
    if rollout.max_tokens >= engine.max_model_len:
        yield f"rollout.max_tokens ({rollout.max_tokens}) leaves no room for a prompt in engine.max_model_len ({engine.max_model_len})"
    if eval.every_steps and not eval.tasks:
        yield f"eval.every_steps ({eval.every_steps}) evaluates nothing while eval.tasks is 0: set eval.tasks"
    ports = {"gateway.port": gateway.port, "engine.port": engine.port}
    if server.url is None:
        ports["agent_server.port"] = server.port
        for key in ("data_path", "sif_dir"):
            if getattr(server, key) is None:
                yield f"agent_server.{key} is missing: the agent server that is started here needs it (or give agent_server.url)"
    elif urlsplit(server.url).hostname not in LOOPBACK and urlsplit(gateway.url).hostname in (*LOOPBACK, "0.0.0.0"):
        yield f"agents at agent_server.url ({server.url}) cannot reach the gateway at {gateway.url}: set gateway.public_url (and gateway.host)"
    for key, port in ports.items():
        for other, taken in ports.items():
            if other < key and taken == port:
                yield f"{other} and {key} are both {port}: give each its own"


def missing_on_this_machine(config: Config) -> list[str]:
    """What the run needs and this machine does not have. Ports are looked at when the services start."""
    problems = []
    model_json = config.model.path / "config.json"
    if not model_json.is_file():
        problems.append(
            f"model.path ({config.model.path}) has no config.json: give the folder of a Hugging Face-format model"
        )
    else:
        window = json.loads(model_json.read_bytes()).get("max_position_embeddings")
        if window and window < config.engine.max_model_len:
            problems.append(
                f"engine.max_model_len ({config.engine.max_model_len}) is more than the model's {window} positions"
            )
    resume_from = config.checkpoint.resume_from
    if resume_from and not resume_from.is_dir():
        problems.append(f"checkpoint.resume_from ({resume_from}) does not exist.{did_you_mean_path(resume_from)}")
    if config.agent_server.url is None:
        for key in ("data_path", "sif_dir"):
            path = getattr(config.agent_server, key)
            if not path.exists():
                problems.append(f"agent_server.{key} ({path}) does not exist.{did_you_mean_path(path)}")
    if str(CLIENT_SCRIPT) in config.rollout.client_command:
        if not any(map(shutil.which, ("/usr/bin/python3", "python3"))):
            problems.append("no python3 is in /usr/bin or on the PATH; the client needs one")
    return problems


def require_machine(config: Config) -> None:
    """Raise SetupError naming all that `missing_on_this_machine` finds."""
    if problems := missing_on_this_machine(config):
        raise SetupError(
            "\n".join(["this machine lacks what the run needs:", *(f"  - {problem}" for problem in problems)])
        )


def did_you_mean(word: str, names: list[str]) -> str:
    """ " Did you mean ...?" with the name closest to `word`, or "" where none is close."""
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f" Did you mean {near[0]}?" if near else ""


def did_you_mean_path(path: Path) -> str:
    """As `did_you_mean`, among the files beside `path`."""
    return did_you_mean(str(path), [str(entry) for entry in path.parent.iterdir()] if path.parent.is_dir() else [])
