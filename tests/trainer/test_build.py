"""Services as a run starts them."""

import os
from pathlib import Path

import pytest

from client.api import AgentServerClient
from client.errors import Unauthorized
from trainer.build import build_agent_server
from trainer.config.schema import AgentServer
from trainer.services.service import free_port

DEMO = Path(os.environ.get("SWE_RL_CACHE", Path(__file__).parents[2] / ".cache")) / "demo"


def test_the_agent_server_of_a_run_needs_the_runs_token(tmp_path):
    settings = AgentServer(port=free_port(), data_path=DEMO / "tasks", sif_dir=DEMO / "images")
    service = build_agent_server(settings, tmp_path / "work", "t0k3n", tmp_path / "server.log")
    url = f"http://127.0.0.1:{settings.port}"
    service.start()
    try:
        service.wait_ready(60)
        assert AgentServerClient(url, token="t0k3n").tasks()["train"]
        with pytest.raises(Unauthorized):
            AgentServerClient(url).tasks()
    finally:
        service.stop()
