"""A server on rows of which most cannot be used, like those of SWE-smith: refused, or left out and listed."""

import json

import pytest
import requests

from tests.agent_server.api.test_bad_input import start
from tests.agent_server.conftest import FIX, ROW, TASK


@pytest.fixture
def mixed_rows(tmp_path) -> str:
    """A usable row, and two that are not: no problem statement, no image."""
    without = [
        {"instance_id": "no-statement", "problem_statement": ""},
        {"instance_id": "no-image", "image_name": "i:9"},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row, default=str) + "\n" for row in (ROW | without[0], ROW, ROW | without[1])))
    return str(path)


def test_the_server_refuses_them_by_default_and_names_the_setting(mixed_rows, tmp_path):
    refused = start(tmp_path, R2E_DATA_PATH=mixed_rows)
    assert refused.returncode == 2 and "1 rows cannot be graded" in refused.stderr
    assert "set AGENT_SERVER_UNUSABLE_ROWS=skip" in refused.stderr
    assert "row 'no-statement': its problem_statement is empty" in refused.stderr


def test_the_server_starts_without_them_where_told_so(own_server, model, mixed_rows, tmp_path):
    server = own_server(R2E_DATA_PATH=mixed_rows, AGENT_SERVER_UNUSABLE_ROWS="skip")
    assert requests.get(f"{server.url}/tasks", timeout=10).json() == {"train": [TASK], "eval": [TASK]}
    listed = [json.loads(line) for line in (server.work_dir / "unusable_rows.jsonl").read_text().splitlines()]
    assert [(line["file"], line["row"]) for line in listed] == [
        ("rows.jsonl", "no-statement"),
        ("rows.jsonl", "no-image"),
    ]
    assert listed[0]["reason"] == "its problem_statement is empty" and "i__9.sif does not exist" in listed[1]["reason"]
    assert "2 rows are left out" in (tmp_path / "work.log").read_text()
    view = server.run(model, [FIX])
    assert (view.status, view.reward) == ("completed", 1.0)
