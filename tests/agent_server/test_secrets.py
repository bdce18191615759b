"""A session's key is in nothing that the server gives out or leaves on disk, also where the model's API echoes it."""

import json
import stat
import uuid

import pytest
import requests

from tests.agent_server.conftest import FIX, TASK, RunningServer, eventually, launch, shut_down
from tests.scripted_model import Refuse


@pytest.fixture(scope="module")
def keyless_server(tmp_path_factory):
    """Its sweeps are frequent: each one empties the database's log of earlier writes."""
    running = launch(tmp_path_factory.mktemp("secrets") / "work", AGENT_SERVER_LEASE_TIMEOUT_S="2")
    yield running
    shut_down(running)


def echo(key: str, *, padding: int = 0) -> Refuse:
    """A refusal that quotes the request's header, as some gateways do."""
    message = f"{'x' * padding}Incorrect API key provided: Bearer {key}, see {json.dumps(key)}"
    return Refuse(401, {"error": {"message": message, "type": "invalid_request_error", "code": "invalid_api_key"}})


def files_with(server: RunningServer, key: str) -> list[str]:
    logs = [server.work_dir.parent / f"{server.work_dir.name}.log"]
    files = [*server.work_dir.rglob("*"), *logs]
    return [str(path) for path in files if path.is_file() and key.encode() in path.read_bytes()]


@pytest.mark.parametrize("padding", [0, *range(850, 1000, 37)])
def test_an_echoed_key_is_in_no_answer_event_log_or_file(keyless_server, model, padding):
    """The client's id is the key, as in Relax. Whatever cuts the error's text must not leave half a key."""
    server, key = keyless_server, f"sk-{uuid.uuid4().hex}"
    session = server.create(model, [echo(key, padding=padding)] * 4, key=key, group_id=f"g{padding}")
    view = server.client.wait(session, timeout_s=60)
    assert (view.status, view.error["boundary"]) == ("failed", "model")
    assert key[:12] not in requests.get(f"{server.url}/sessions/{session}", timeout=10).text
    eventually(lambda: files_with(server, key[:12]) == [], what="the key gone from every file")
    assert '"name": "failed"' in (server.work_dir / "events.jsonl").read_text()


def test_a_key_in_an_answer_of_the_model_is_not_kept(keyless_server, model):
    server, key = keyless_server, f'sk-"{uuid.uuid4().hex}\\'
    view = server.run(model, [f"text:your key is {key}", f"{FIX}\necho '{key}' > note.txt"], key=key, group_id="answer")
    assert (view.status, view.agent_exit_status) == ("completed", "Submitted") and "note.txt" in view.submission
    assert key not in view.submission
    eventually(lambda: files_with(server, json.dumps(key)[1:-1]) == files_with(server, key) == [], what="no key")


def test_files_of_a_session_are_for_the_servers_user_alone(keyless_server, model):
    view = keyless_server.run(model, [FIX], task_id=TASK)
    assert view.reward == 1.0
    files = [path for path in keyless_server.work_dir.rglob(f"{view.session_id}*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".log"} and len(files) >= 3, files
    for path in (*files, keyless_server.work_dir / "events.jsonl", keyless_server.work_dir / "agent_server.sqlite"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for folder in ("trajectories", "logs"):
        assert stat.S_IMODE((keyless_server.work_dir / folder).stat().st_mode) == 0o700, folder


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("api_key", "sk-0123456789\n"),
        ("api_key", "sk-0123456789" * 400),
        ("session_id", "sk-0123456789" * 30),
        ("base_url", "http://user:sk-0123456789@127.0.0.1:9"),
        ("base_url", "http://127.0.0.1:9?key=sk-0123456789@"),
    ],
)
def test_a_refusal_does_not_quote_a_secret(keyless_server, field, value):
    body = {"session_id": "s", "group_id": "g", "mode": "train", "base_url": "http://127.0.0.1:9", "api_key": "k"}
    answer = requests.post(f"{keyless_server.url}/sessions", json=body | {field: value}, timeout=10)
    assert answer.status_code == 400 and answer.json()["error"]["field"] == field
    assert "sk-0123456789" not in answer.text and str(len(value)) in answer.text
