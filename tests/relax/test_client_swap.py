"""Relax's client in the place of ours, at our agent server: sandboxes, grading and all."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import requests

from tests.agent_server.conftest import FIX, ROW, eventually
from tests.client.client_process import run_client, start_client, wait_for_exit
from tests.relax.test_server_swap import relax_id
from tests.scripted_model import Hang


@pytest.fixture
def program(tmp_path) -> Path:
    """The client as the trainer's command."""
    script = tmp_path / "relax_client.sh"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name('client.py')}\n")
    script.chmod(0o755)
    return script


def test_a_session_from_launch_to_output(tmp_path, server, model, program):
    """The samples of a group have one row; which one, Relax's client cannot say."""
    ids = [relax_id(), relax_id()]
    for number, name in enumerate(ids):
        base_url = f"{model.url}/agentic_api/"
        options = {"session_id": name, "base_url": base_url, "RELAX_GROUP_ID": "7"}
        ended = run_client(tmp_path / str(number), server.url, program=program, **options)
        assert ended.code == 0, ended.stderr
        output = json.loads((tmp_path / str(number) / "output.json").read_text())
        metadata = {"exit_status": "Submitted", "submission": "", "n_calls": 1}
        assert output == {"reward": 0.0, "metadata": metadata} and len(model.requests[name]) == 1
    problems = [model.requests[name][0]["messages"][1]["content"] for name in ids]
    assert problems[0] == problems[1]


def test_a_fix_is_rewarded(tmp_path, own_server, model, program):
    """With one row, since the client cannot choose it."""
    name = relax_id()
    model.scripts[name] = [FIX]
    row = tmp_path / "row.jsonl"
    row.write_text(json.dumps(ROW))
    server = own_server(R2E_DATA_PATH=str(row))
    ended = run_client(tmp_path / "io", server.url, session_id=name, base_url=model.url, program=program)
    output = json.loads((tmp_path / "io" / "output.json").read_text())
    assert ended.code == 0 and output["reward"] == 1.0 and output["metadata"]["submission"]


def test_a_failure_is_traced_without_the_key(tmp_path, server, program):
    name, trace = relax_id(), tmp_path / "trace"
    options = {"session_id": name, "AGENT_CLIENT_TRACE_DIR": str(trace)}
    ended = run_client(tmp_path / "io", server.url, program=program, **options)
    assert ended.code == 1 and not (tmp_path / "io" / "output.json").exists()
    (path,) = trace.iterdir()
    assert path.name == f"{name}.failed.json" and name not in path.read_text()
    view = json.loads(path.read_text())
    assert (view["status"], view["exit_code"], view["error"]["code"]) == ("failed", 1, "model_unreachable")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_stops_the_remote_session(tmp_path, server, model, program, number):
    name = relax_id()
    model.scripts[name] = [Hang(60.0)]
    before = cancelled(server)
    client = start_client(tmp_path / "io", server.url, session_id=name, base_url=model.url, program=program)
    eventually(lambda: name in model.requests, what="the agent calls its model")
    os.killpg(client.pid, number)
    assert wait_for_exit(client).code == 143
    eventually(lambda: cancelled(server) == before + 1, what="the session is cancelled")


def cancelled(server) -> int:
    return requests.get(f"{server.url}/healthz", timeout=10).json()["sessions"].get("train", {}).get("cancelled", 0)
