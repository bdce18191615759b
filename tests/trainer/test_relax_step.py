"""A whole training step with Relax's agent server in the place of ours: vLLM, gateway, our clients, actor, new weights.

The gateway's public URL has a path, as behind Relax's own API.
"""

import json
from pathlib import Path

import pytest

from tests.relax.agent_server import serving_relax
from trainer import build, launch
from trainer.config.file import load_config
from trainer.services.service import free_port

QUICKSTART = Path(__file__).parents[2] / "scripts" / "runs" / "quickstart.toml"

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("vllm")]


class RunningEngine:
    """The engine of the tests, which a run neither starts nor stops."""

    def __init__(self, engine):
        self._engine = engine

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def start(self):
        pass

    def stop(self):
        pass


def test_a_step_with_relaxs_agent_server(vllm_engine, tiny_llama, tmp_path, monkeypatch, interrupts):
    monkeypatch.setattr(build, "build_engine", lambda *_: RunningEngine(vllm_engine))
    gateway_port = free_port()
    with serving_relax(lambda session: float(session.place == 0)) as (url, server):
        settings = {
            "run.dir": tmp_path / "runs",
            "model.path": tiny_llama,
            "agent_server.url": url,
            "gateway.port": gateway_port,
            "gateway.public_url": f"http://127.0.0.1:{gateway_port}/agentic_api/",
            "engine.max_model_len": 2048,
            "train.steps": 1,
            "eval.tasks": 0,
            "rollout.groups_per_step": 2,
            "rollout.group_size": 2,
            "rollout.max_tokens": 16,
        }
        config = load_config(QUICKSTART, [f"{key}={value}" for key, value in settings.items()])
        try:
            launch.run(config, interrupts)
        finally:
            vllm_engine.load_weights(tiny_llama, 0)
    folder = tmp_path / "runs" / "quickstart"
    (metrics,) = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    assert (metrics["reward_mean"], metrics["n_groups_trained"], metrics["weights_version"]) == (0.5, 2, 1)
    assert metrics["loss"] is not None and metrics["grad_norm"] > 0
    sessions = list(server.sessions.values())
    assert [session.status for session in sessions] == ["completed"] * 4
    assert {session.result["n_calls"] for session in sessions} <= {1, 2}
    trajectories = (folder / "trajectories" / "train_0001.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["reward"] for line in trajectories) == [0.0, 0.0, 1.0, 1.0]
