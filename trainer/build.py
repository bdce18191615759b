"""Constructors of a run's components from its Config.

Invariant: nothing here starts a process, opens a port or waits. `trainer.launch` starts the components.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from client.errors import ModelUnreachable
from trainer.actors.base import Actor
from trainer.config.schema import AgentServer, Config
from trainer.engines.vllm import VllmEngine
from trainer.rollouts.manager import ClientSettings
from trainer.services.service import Service

CLIENT_KILL_AFTER_S = 8.0  # after SIGTERM a client spends at most 5 s on cancelling its session


def ports(config: Config) -> Iterator[tuple[str, str, int]]:
    """Name, host and port of every server that the run starts on one. vLLM has none."""
    yield "the gateway (gateway.port)", config.gateway.host, config.gateway.port
    if config.agent_server.url is None:
        yield "the agent server (agent_server.port)", config.agent_server.host, config.agent_server.port


def build_engine(config: Config, model: Path, log: Path) -> VllmEngine:
    """The vLLM server that serves the weights in `model`."""
    settings = config.engine
    return VllmEngine(
        model,
        log,
        max_model_len=settings.max_model_len,
        eager=settings.eager,
        dtype=settings.dtype,
        kv_cache_gib=settings.kv_cache_gib,
        cpu_threads=settings.cpu_threads,
        extra_args=settings.args,
    )


def build_gateway(config: Config, model: Path, engine_socket: Path, token: str, log: Path) -> Service:
    """The gateway's process; `token` opens its control routes."""
    settings = config.gateway
    command = [sys.executable, "-m", "trainer.gateway", "--engine-socket", str(engine_socket)]
    command += ["--model", str(model), "--host", settings.host, "--port", str(settings.port)]
    command += ["--chat-template-kwargs", json.dumps(settings.chat_template_kwargs)]
    command += ["--tools"] if config.agent_server.agent_config == "tools" else []
    url = control_url(config) + "/healthz"
    return Service(
        "gateway", command, dict(os.environ, GATEWAY_CONTROL_TOKEN=token), log, url, unreachable=ModelUnreachable
    )


def build_agent_server(settings: AgentServer, work_dir: Path, token: str, log: Path) -> Service:
    """The agent server of a run that names no other one; its records and trajectories go to `work_dir`. Its calls need
    `token`."""
    env = dict(
        os.environ,
        R2E_DATA_PATH=str(settings.data_path),
        R2E_SIF_DIR=str(settings.sif_dir),
        AGENT_SERVER_WORK_DIR=str(work_dir),
        AGENT_SERVER_TOKEN=token,
    )
    for key in (
        *("host", "port", "agent_config", "train_concurrency", "eval_concurrency", "seed"),
        *("command_timeout_s", "sandbox_start_timeout_s", "agent_timeout_s", "grading_timeout_s", "session_timeout_s"),
    ):
        env[f"AGENT_SERVER_{key.upper()}"] = str(getattr(settings, key))
    url = f"http://{_reachable(settings.host)}:{settings.port}"
    return Service("agent server", [sys.executable, "-m", "agent_server"], env, log, url + "/healthz")


def build_client_settings(config: Config, io_root: Path, run_id: str, token: str) -> ClientSettings:
    """Command, environment and limits of the client processes. `token`: the agent server's, "" for none."""
    server, rollout = config.agent_server, config.rollout
    env = dict(os.environ, AGENT_SERVER_URL=server.url or f"http://{_reachable(server.host)}:{server.port}")
    if token:
        env["AGENT_SERVER_TOKEN"] = token
    return ClientSettings(
        command=rollout.client_command,
        base_url=config.gateway.url,
        io_root=io_root,
        env=env,
        timeout_s=rollout.client_timeout_s,
        kill_after_s=CLIENT_KILL_AFTER_S,
        max_clients=rollout.max_clients,
        max_tries=rollout.max_tries,
        run_id=run_id,
    )


def build_actor(config: Config, model: Path) -> Actor:
    """The actor, with the weights in `model` loaded."""
    import torch  # late: the import takes seconds, during which vLLM already starts
    from transformers.utils import logging

    from trainer.actors.torch_actor import TorchActor

    logging.disable_progress_bar()  # it would overwrite the run's own display
    return TorchActor(
        model,
        device=config.actor.device,
        compute_dtype=getattr(torch, config.actor.compute_dtype),
        learning_rate=config.actor.learning_rate,
        weight_decay=config.actor.weight_decay,
        max_grad_norm=config.actor.max_grad_norm,
        max_microbatch_tokens=config.actor.max_microbatch_tokens,
        clip_low=config.algorithm.clip_low,
        clip_high=config.algorithm.clip_high,
    )


def build_decoder(model: Path) -> Callable[[Sequence[int]], str]:
    """A function from token ids to text, for the trajectories only."""
    from transformers import AutoTokenizer  # late, as with torch

    tokenizer = AutoTokenizer.from_pretrained(model)
    return lambda tokens: tokenizer.decode(tokens)


def control_url(config: Config) -> str:
    """The URL of the gateway for the trainer itself."""
    return f"http://{_reachable(config.gateway.host)}:{config.gateway.port}"


def _reachable(host: str) -> str:
    """The address to connect to for a server that listens on `host`."""
    return "127.0.0.1" if host == "0.0.0.0" else host
