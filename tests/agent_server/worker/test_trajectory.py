"""The ending in a trajectory file: beside what the agent wrote, without the key, and in no file of another format."""

import json
import stat

import pytest

from agent_server.agents.base import AgentResult
from agent_server.worker.trajectory import record_ending
from client.redaction import Redaction

KEY = "sk-0123456789"
RESULT = AgentResult("Submitted", True, f"diff of {KEY}\n", 2)


def test_the_ending_is_added_and_the_key_is_not(tmp_path):
    path = tmp_path / "s.traj.json"
    path.write_text(json.dumps({"info": {"exit_status": "", "model_stats": {"api_calls": 2}}, "messages": ["m"]}))
    path.chmod(0o600)
    record_ending(path, RESULT, Redaction(KEY))
    record = json.loads(path.read_text())
    assert record["messages"] == ["m"] and record["info"]["model_stats"] == {"api_calls": 2}
    assert record["info"]["exit_status"] == "Submitted" and record["info"]["submission"].startswith("diff of key-")
    assert KEY not in path.read_text() and stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content",
    ["", "not json", "[1]", "1", '{"messages": []}', '{"info": "text"}', "[" * 100_000, b"\xff".decode("latin-1")],
    ids=["empty", "text", "list", "number", "no info", "no record", "deep", "bytes"],
)
def test_a_file_of_another_format_stays(tmp_path, content):
    path = tmp_path / "s.traj.json"
    path.write_text(content)
    record_ending(path, RESULT, Redaction(KEY))
    assert path.read_text() == content and list(tmp_path.iterdir()) == [path]


def test_an_agent_may_write_no_file(tmp_path):
    record_ending(tmp_path / "s.traj.json", RESULT, Redaction(KEY))
    assert not list(tmp_path.iterdir())
