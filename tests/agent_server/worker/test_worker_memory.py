"""The worker's own memory: what it keeps of outputs, its bound, and its part in the session's peak."""

import json

import pytest

from agent_server.agents.command_outputs import FILE_LIMIT_BYTES, KEPT_CHARACTERS, CommandOutputs
from tests.agent_server.conftest import FIX, ROOT

# One million lines of 15 characters: 15 MB a command.
PRINT = "seq -f '%014.0f' 1000000"
CONFIG = """
protocol: text
agent: {system_template: s, instance_template: "{{task}}", step_limit: 40}
model:
  action_regex: "```bash\\\\s*\\\\n(.*?)\\\\n```"
  format_error_template: f
  observation_template: "{{output.output[:300]}}[...]{{output.output[-300:]}}"
"""
GREEDY_AGENT = """
from agent_server.agents.base import AgentResult

class Agent:
    def run(self, problem_statement, sandbox, endpoint, *, agent_timeout_s, command_timeout_s, trajectory, seconds):
        held = bytearray(b"x") * (SIZE_MIB * 2**20)
        return AgentResult(f"Held {len(held) >> 20}", submitted=False, submission="", n_calls=0)
"""


def test_thirty_commands_of_fifteen_megabytes_cost_neither_memory_nor_disk(own_server, model, tmp_path):
    (tmp_path / "long.yaml").write_text(CONFIG)
    server = own_server(AGENT_SERVER_AGENT_CONFIG=str(tmp_path / "long.yaml"))
    view = server.run(model, [PRINT] * 30 + [FIX], key="prints much")
    assert (view.status, view.reward, view.n_calls) == ("completed", 1.0, 32)
    assert view.peak_memory_bytes < 400 * 2**20, "sandbox and worker; the outputs have 450 MB"
    (trajectory,) = (path for path in (server.work_dir / "trajectories").glob("*.json"))
    assert trajectory.stat().st_size < 2**20
    messages = json.loads(trajectory.read_text())["messages"]
    observations = [message for message in messages if "raw_output" in message.get("extra", {})]
    seen = model.requests["prints much"][1]["messages"][-1]["content"]
    assert observations[0]["content"] == seen and seen.endswith("00000001000000\n")
    assert "characters left out; see" in observations[0]["extra"]["raw_output"]
    outputs = trajectory.with_name(f"{view.session_id}.outputs.txt")
    assert 15_000_000 < outputs.stat().st_size < FILE_LIMIT_BYTES + 100
    assert outputs.stat().st_mode & 0o777 == 0o600
    assert outputs.read_text().startswith(f"$ {PRINT}\n00000000000001\n")


def test_a_file_of_outputs_has_a_limit_and_says_so(tmp_path):
    outputs = CommandOutputs(tmp_path / "session.traj.json")
    assert outputs.keep("echo", "short") == "short" and not list(tmp_path.iterdir())
    long = "é" * (FILE_LIMIT_BYTES // 3)
    for _ in range(3):
        kept = outputs.keep("print", long)
    assert len(kept) < KEPT_CHARACTERS + 100 and kept.startswith("é") and kept.endswith("é")
    content = (tmp_path / "session.outputs.txt").read_bytes()
    assert content.endswith(b"[the file is full; what follows is left out]\n")
    assert FILE_LIMIT_BYTES < len(content) < FILE_LIMIT_BYTES + 100


@pytest.mark.parametrize("size_mib, exit_status", [(100, "Held 100"), (400, "WorkerMemoryExceeded")])
def test_a_worker_is_bounded_and_counted(own_server, model, tmp_path, size_mib, exit_status):
    """The end is the agent's, not a failure, which is refilled: a policy could learn to cause it."""
    (tmp_path / "greedy_agent.py").write_text(GREEDY_AGENT.replace("SIZE_MIB", str(size_mib)))
    server = own_server(
        PYTHONPATH=f"{tmp_path}:{ROOT}",
        AGENT_SERVER_AGENT="greedy_agent:Agent",
        AGENT_SERVER_WORKER_MEMORY_MIB="256",
    )
    view = server.run(model, [])
    assert (view.status, view.reward, view.agent_exit_status) == ("completed", 0.0, exit_status)
    assert (view.peak_memory_bytes > 100 * 2**20) == (exit_status == "Held 100")
