"""Starts what a run needs, trains, and stops all of it again.

Invariant: whatever was started is stopped, the last first, however the run ends and whatever signals come meanwhile. Order:
ports, services, the actor (it loads while vLLM starts), health. Nothing is waited for before everything has been started.
"""

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import requests

from client.errors import ConfigError, ServerUnreachable
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


class Startable(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...


def run(config: Config, interrupts: Interrupts) -> None:
    """Train as `config` says. Raises StackError with the failure's boundary, Interrupted on a signal."""
    for name, host, port in build.ports(config):
        require_free_port(name, host, port)
    if config.agent_server.url is not None:
        _require_answer(config.agent_server.url)
    resume = _checkpoint_to_resume(config)
    log = RunDir(config)
    with Display() as display:
        display.message(f"run folder: {log.directory}")
        try:
            with _stopping(interrupts, display) as start:
                _prepare(config, resume, log, display, interrupts, start).run()
        except Interrupted as interrupted:
            display.message(f"ended by {interrupted}; what was finished is in {log.directory}")
            raise
        finally:
            shutil.rmtree(_weights_dir(log), ignore_errors=True)
        display.message(f"done: {log.directory}")


def _prepare(
    config: Config,
    resume: Checkpoint | None,
    log: RunDir,
    display: Display,
    interrupts: Interrupts,
    start: Callable[[Startable], None],
) -> Loop:
    """Start everything; return the loop when all of it can be used."""
    model = resume.weights if resume else config.model.path
    logs, token = log.directory / "logs", secrets.token_hex(16)
    engine = build.engine(config, model, logs / "vllm.log")
    gateway = build.gateway(config, model, engine.url, token, logs / "gateway.log")
    services = [engine, gateway]
    if config.agent_server.url is None:
        services.append(
            build.agent_server(config.agent_server, log.directory / "agent_server", logs / "agent_server.log")
        )

    display.phase("starting")
    display.message(
        f"starting vLLM, gateway{'' if config.agent_server.url else ', agent server'}; they print to {logs}"
    )
    for service in services:
        start(service)
    if config.agent_server.url is None:  # the quickest to start, and the one that looks at rows and images
        services[-1].wait_ready(config.agent_server.start_timeout_s)
    display.phase("loading the actor")
    actor = build.actor(config, model)
    if resume:
        actor.load_state(resume.state)
    log.decode = build.decoder(model)
    display.phase("waiting for the gateway and vLLM")
    gateway.wait_ready(config.gateway.start_timeout_s)
    engine.wait_ready(config.engine.start_timeout_s)
    display.message("all services are up")

    def watch() -> None:
        for service in services:
            service.check()

    control = GatewayControl(build.control_url(config), token)
    # Group ids name task rows on the agent server for as long as it lives: they must be unlike those of other runs.
    run_id = f"{log.directory.name}-{secrets.token_hex(3)}"
    rollouts = RolloutManager(
        build.client_settings(config, log.directory / "sessions", run_id), control, interrupts, watch
    )
    checkpoints = Checkpoints(log.directory / "checkpoints", config.checkpoint.keep)
    components = Components(engine, control, actor, rollouts, checkpoints)
    return Loop(config, components, log, display, interrupts, run_id, _weights_dir(log), resume.step if resume else 0)


@contextmanager
def _stopping(interrupts: Interrupts, display: Display) -> Iterator[Callable[[Startable], None]]:
    """Yields `start(service)`; on the way out all that it started is stopped, and no signal cuts that short."""
    started = ExitStack()

    def start(service: Startable) -> None:
        with interrupts.deferred():
            started.callback(service.stop)
            service.start()

    try:
        yield start
    finally:
        with interrupts.deferred():
            display.phase("stopping what was started")
            started.close()


def _checkpoint_to_resume(config: Config) -> Checkpoint | None:
    directory = config.checkpoint.resume_from
    if directory is None:
        return None
    newest = Checkpoints(directory).latest()
    if newest is None:
        raise ConfigError(
            f"checkpoint.resume_from ({directory}) holds no whole checkpoint: give the checkpoints folder of a run"
        )
    if newest.step >= config.train.steps:
        raise ConfigError(
            f"checkpoint.resume_from is at step {newest.step} already: set train.steps higher than that, not {config.train.steps}"
        )
    return newest


def _weights_dir(log: RunDir) -> Path:
    return log.directory / "weights"


def _require_answer(url: str) -> None:
    try:
        requests.get(url + "/healthz", timeout=5)
    except requests.RequestException as error:
        raise ServerUnreachable(
            f"no agent server answers at agent_server.url ({url}): start it there, or correct the address ({error})"
        ) from None
