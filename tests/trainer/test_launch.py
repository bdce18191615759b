"""Whole runs as processes, ended by signals at every stage: nothing is left, the last checkpoint is whole.

Services and clients are real processes; the script below fakes their work.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from client.errors import ConfigError, ServerUnreachable
from trainer import launch
from trainer.checkpoints import Checkpoints
from trainer.config.file import load_config
from trainer.interrupts import Interrupts
from trainer.services.service import free_port

ROOT = Path(__file__).parents[2]
SCRIPT = r"""
import sys, time
from pathlib import Path
from trainer import build, launch
from trainer.__main__ import main
from trainer.actors.base import StepReport
from trainer.records import Segment, Trace
from trainer.services.service import Service

stage, directory = sys.argv[1], Path(sys.argv[2])
hold = directory / "hold"

def reach(name):
    if name == stage:
        hold.touch()
        time.sleep(600)

class Engine(Service):
    socket = directory / "engine.sock"
    def load_weights(self, directory, version): reach("load_weights")

def service(name, kind=Service):
    env = {"PATH": "/usr/bin:/bin", "PROCESS_TAG": sys.argv[3]}
    return kind(name, ["sh", "-c", "sleep 600 & wait"], env, directory / "log", lambda: reach(name) or True)

class Actor:
    steps = 0
    def step(self, groups):
        self.steps += 1
        if self.steps == 2: reach("step")
        return StepReport(0.5, 1.0, 0.1, 0.0, 0.001, 0.01, 8, 16)
    def save_weights(self, path):
        path.mkdir(parents=True, exist_ok=True)
        (path / "weights").write_text(str(self.steps))
    def save_state(self, path):
        path.mkdir()
        if self.steps == 2: reach("checkpoint")

class Control:
    def __init__(self, url, token): pass
    def open(self, *arguments): pass
    def close(self, session_id):
        return Trace((Segment(-1, False, (1,)), Segment(0, True, (2,), (-0.1,), 0, "stop")), 1)
    def status(self): return {}
    def set_version(self, version): pass

def load_actor(config, model):
    reach("actor")
    return Actor()

build.build_engine = lambda *arguments: service("engine", Engine)
build.build_gateway = lambda *arguments: service("gateway")
def agent_server(settings, work_dir, token, log):
    (directory / "server_token").write_text(token)
    return service("agent_server")

build.build_agent_server = agent_server
build.build_actor = load_actor
build.build_decoder = lambda model: str
launch.GatewayControl = Control
sys.exit(main(["run", *sys.argv[4:]]))
"""
CLIENT = """
if [ $RELAX_ROLLOUT_MODE = {stage} ]; then
  touch {directory}/hold; trap 'exit 143' TERM; while :; do sleep 0.1; done
fi
printf %s "$AGENT_SERVER_TOKEN" >{directory}/client_token
mkdir {directory}/$RELAX_GROUP_ID 2>/dev/null && reward=1 || reward=0
printf '{{"reward": %s, "metadata": {{"n_calls": 1}}}}' $reward >$RELAX_OUTPUT_JSON
"""


@pytest.fixture
def start(tmp_path, process_tag):
    """Factory of runs that block in `stage` after they have made the file `hold`."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    runs = []

    def start(stage: str) -> subprocess.Popen:
        overrides = {
            "run.dir": tmp_path / "runs",
            "model.path": tmp_path / "model",
            "agent_server.data_path": tmp_path,
            "agent_server.sif_dir": tmp_path,
            "train.steps": 2,
            "checkpoint.every_steps": 1,
            "rollout.groups_per_step": 2,
            "rollout.group_size": 2,
            "eval.tasks": 2,
            "eval.samples": 2,
            "rollout.client_command": CLIENT.format(stage=stage, directory=tmp_path),
        }
        arguments = [stage, tmp_path, process_tag, "scripts/runs/quickstart.toml"]
        arguments += [f"{key}={value}" for key, value in overrides.items()]
        env = dict(os.environ, PROCESS_TAG=process_tag, HOME="/nonexistent")  # HOME: no login profile in a test
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *map(str, arguments)],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        runs.append(process)
        return process

    yield start
    for process in runs:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_for_hold(run: subprocess.Popen, hold: Path) -> None:
    while not hold.exists():
        if run.poll() is not None:
            pytest.fail(f"the run ended with {run.returncode}: {run.stdout.read().decode()}")
        time.sleep(0.02)


def test_a_run_that_completes_leaves_no_process(start, leftover_processes, tmp_path):
    run = start("none")
    output = run.communicate()[0].decode()
    assert run.returncode == 0 and "held-out resolved rate: before" in output
    assert leftover_processes() == []
    assert len((tmp_path / "server_token").read_text()) >= 32
    assert (tmp_path / "client_token").read_text() == (tmp_path / "server_token").read_text()
    assert {path.name for path in (tmp_path / "runs" / "quickstart").iterdir()} == {
        "config.resolved.toml",
        "metrics.jsonl",
        "evaluations.jsonl",
        "trajectories",
        "reward.png",
        "checkpoints",
    }


@pytest.mark.parametrize(
    "stage", ["agent_server", "actor", "gateway", "engine", "eval", "train", "step", "load_weights", "checkpoint"]
)
def test_ctrl_c_at_any_stage_leaves_nothing(start, leftover_processes, tmp_path, stage):
    run = start(stage)
    wait_for_hold(run, tmp_path / "hold")
    run.send_signal(signal.SIGINT)
    time.sleep(0.05)
    run.send_signal(signal.SIGINT)  # a second Ctrl-C must not interrupt the clean-up
    output = run.communicate()[0].decode()
    assert run.returncode == 130, output
    assert "ended by SIGINT" in output and "Traceback" not in output
    assert leftover_processes() == []
    folder = tmp_path / "runs" / "quickstart"
    assert not (folder / "weights").exists()
    kept = Checkpoints(folder / "checkpoints").all()
    assert [checkpoint.step for checkpoint in kept] == ([1] if stage in ("step", "checkpoint") else [])
    if kept:
        assert (kept[0].weights / "weights").read_text() == "1"


def test_sigterm_ends_a_run_like_ctrl_c(start, leftover_processes, tmp_path):
    run = start("train")
    wait_for_hold(run, tmp_path / "hold")
    run.send_signal(signal.SIGTERM)
    run.communicate()
    assert run.returncode == 143 and leftover_processes() == []


def test_a_killed_run_leaves_no_process(start, leftover_processes, tmp_path):
    run = start("train")
    wait_for_hold(run, tmp_path / "hold")
    run.kill()
    run.wait()
    assert leftover_processes() == []


@pytest.fixture
def refused(tmp_path):
    """The message of the error that a configuration raises before anything is started or written."""

    def refused(kind: type[Exception], *overrides: str) -> str:
        ports = [f"{section}.port={free_port()}" for section in ("gateway", "agent_server")]
        config = load_config(ROOT / "scripts/runs/quickstart.toml", [f"run.dir={tmp_path}/runs", *ports, *overrides])
        with pytest.raises(kind) as caught:
            launch.run(config, Interrupts())
        assert not (tmp_path / "runs").exists()
        return str(caught.value)

    return refused


def test_a_port_in_use_is_named_by_its_key(refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "gateway.port" in refused(ConfigError, f"gateway.port={taken.getsockname()[1]}")


def test_an_unreachable_agent_server_is_named_by_its_key(refused):
    url = f"http://127.0.0.1:{free_port()}"
    assert f"agent_server.url ({url})" in refused(ServerUnreachable, f"agent_server.url={url}")


def test_only_a_whole_checkpoint_with_steps_to_go_is_resumed(refused, tmp_path):
    class Actor:
        def save_weights(self, path):
            path.mkdir()

        save_state = save_weights

    resume = f"checkpoint.resume_from={tmp_path}/checkpoints"
    assert "holds no whole checkpoint" in refused(ConfigError, resume)
    Checkpoints(tmp_path / "checkpoints").save(16, Actor())
    assert "is at step 16 already" in refused(ConfigError, resume, "train.steps=16")
