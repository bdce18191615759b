"""Life of a run: start the services, load the actor, train, stop everything.

Invariant: everything that was started is stopped, the last first, however the run ends and whatever signals arrive.
Order: check the ports, start the services, load the actor while vLLM starts, wait for health.
"""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import requests

from client.errors import ConfigError, ServerUnreachable
from client.http_session import http_session
from trainer import build
from trainer.checkpoints import Checkpoint, Checkpoints
from trainer.config.schema import Config
from trainer.display import Display
from trainer.gateway.control import GatewayControl
from trainer.interrupts import Interrupted, Interrupts
from trainer.loop import Components, Loop
from trainer.rollouts.manager import RolloutManager
from trainer.run_dir import RunDir
from trainer.services.service import require_free_port


class ChildServer(Protocol):
    """A server process of the run: `trainer.services.service.Service` or `trainer.engines.vllm.VllmEngine`."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def check(self) -> None: ...
    def wait_ready(self, timeout_s: float) -> None: ...


def run(config: Config, interrupts: Interrupts) -> None:
    """Train as configured. Raises StackError with the failure's boundary, Interrupted on a signal."""
    for name, host, port in build.ports(config):
        require_free_port(name, host, port)
    if config.agent_server.url is not None:
        _require_agent_server(config.agent_server.url)
    resume = _checkpoint_to_resume(config)
    run_dir = RunDir(config)
    with Display() as display:
        display.message(f"run folder: {run_dir.path}")
        try:
            with _stop_on_exit(interrupts, display) as start:
                _prepare(config, resume, run_dir, display, interrupts, start).run()
        except Interrupted as interrupted:
            display.message(f"ended by {interrupted}; finished steps and checkpoints are in {run_dir.path}")
            raise
        finally:
            shutil.rmtree(_weights_dir(run_dir), ignore_errors=True)
        display.message(f"done: {run_dir.path}")


def _prepare(
    config: Config,
    resume: Checkpoint | None,
    run_dir: RunDir,
    display: Display,
    interrupts: Interrupts,
    start: Callable[[ChildServer], None],
) -> Loop:
    """Start every component with `start`. Returns the loop once all of them are ready."""
    model = resume.weights if resume else config.model.path
    logs, token, server_token = run_dir.path / "logs", secrets.token_hex(16), _agent_server_token(config)
    engine = build.build_engine(config, model, logs / "vllm.log")
    gateway = build.build_gateway(config, model, engine.socket, token, logs / "gateway.log")
    services: list[ChildServer] = [engine, gateway]
    if config.agent_server.url is None:
        work_dir = run_dir.path / "agent_server"
        services.append(
            build.build_agent_server(config.agent_server, work_dir, server_token, logs / "agent_server.log")
        )

    display.phase("starting")
    names = "vLLM and gateway" if config.agent_server.url else "vLLM, gateway and agent server"
    display.message(f"starting {names}; their logs are in {logs}")
    for service in services:
        start(service)
    if config.agent_server.url is None:  # first: it starts fastest, and it checks rows and images
        services[-1].wait_ready(config.agent_server.start_timeout_s)
    display.phase("loading the actor")
    actor = build.build_actor(config, model)
    if resume:
        actor.load_state(resume.state)
    run_dir.decode = build.build_decoder(model)
    display.phase("waiting for the gateway and vLLM")
    gateway.wait_ready(config.gateway.start_timeout_s)
    engine.wait_ready(config.engine.start_timeout_s)
    display.message("all services are up")

    def health_check() -> None:
        for service in services:
            service.check()

    control = GatewayControl(build.control_url(config), token)
    # An agent server keeps the task row of a group id as long as it lives, so ids must differ from run to run.
    run_id = f"{run_dir.path.name}-{secrets.token_hex(3)}"
    settings = build.build_client_settings(config, run_dir.path / "sessions", run_id, server_token)
    rollouts = RolloutManager(settings, control, interrupts, health_check)
    checkpoints = Checkpoints(run_dir.path / "checkpoints", config.checkpoint.keep)
    components = Components(engine, control, actor, rollouts, checkpoints)
    steps_done = resume.step if resume else 0
    return Loop(config, components, run_dir, display, interrupts, run_id, _weights_dir(run_dir), steps_done)


@contextmanager
def _stop_on_exit(interrupts: Interrupts, display: Display) -> Iterator[Callable[[ChildServer], None]]:
    """Yields `start(service)`. On exit every started service is stopped, and no signal interrupts that."""
    started = ExitStack()

    def start(service: ChildServer) -> None:
        with interrupts.deferred():
            started.callback(service.stop)
            service.start()

    try:
        yield start
    finally:
        with interrupts.deferred():
            display.phase("stopping the services")
            started.close()


def _checkpoint_to_resume(config: Config) -> Checkpoint | None:
    directory = config.checkpoint.resume_from
    if directory is None:
        return None
    newest = Checkpoints(directory).latest()
    if newest is None:
        raise ConfigError(
            f"checkpoint.resume_from ({directory}) holds no whole checkpoint; set it to the checkpoints folder of a run"
        )
    if newest.step >= config.train.steps:
        raise ConfigError(
            f"train.steps ({config.train.steps}) must be higher than the step of the checkpoint: "
            f"checkpoint.resume_from is at step {newest.step} already"
        )
    return newest


def _agent_server_token(config: Config) -> str:
    """The user's, who may have set one for the server at agent_server.url; else one for the server of this run."""
    return os.environ.get("AGENT_SERVER_TOKEN", "") or ("" if config.agent_server.url else secrets.token_hex(16))


def _weights_dir(run_dir: RunDir) -> Path:
    return run_dir.path / "weights"


def _require_agent_server(url: str) -> None:
    try:
        with http_session(url) as http:
            http.get(url + "/healthz", timeout=5)
    except requests.RequestException as error:
        raise ServerUnreachable(
            f"an agent server must answer at agent_server.url ({url}): {error}; start it there or correct the address"
        ) from None
