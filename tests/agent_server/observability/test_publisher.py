"""Publisher: one batch a pass, long polls first, and nothing counted before it is written."""

import json

import pytest

from agent_server.observability import publisher as module
from agent_server.observability.events import EventLog
from agent_server.observability.publisher import Publisher
from agent_server.scheduling.loop import IDLE_S
from agent_server.store.store import Store
from tests.agent_server.conftest import ONE_TASK, session_request


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "work")
    yield store
    store.close()


def test_a_batch_a_pass_in_order(store, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BATCH", 2)
    woken, observed = [], []
    publisher = Publisher(store, EventLog(tmp_path / "events.jsonl"), woken.extend, [observed.append])
    sessions = [store.submit(session_request(f"s{n}", "g"), ONE_TASK)[0] for n in range(2)]
    store.request_cancel(sessions[1])
    assert publisher.publish() == 0.0 and [event["name"] for event in observed] == ["queued", "queued"] and not woken
    assert publisher.publish() == IDLE_S and woken == [sessions[1]]
    assert publisher.publish() == IDLE_S and len(observed) == 3
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == observed


def test_long_polls_hear_of_an_end_although_the_file_cannot_be_written(store, tmp_path):
    woken, observed = [], []
    (tmp_path / "events.jsonl").mkdir()
    publisher = Publisher(store, EventLog(tmp_path / "events.jsonl"), woken.extend, [observed.append])
    session_id, _ = store.submit(session_request("s", "g"), ONE_TASK)
    store.request_cancel(session_id)
    with pytest.raises(OSError):
        publisher.publish()
    assert woken == [session_id] and not observed
    (tmp_path / "events.jsonl").rmdir()
    publisher.publish()
    assert [event["name"] for event in observed] == ["queued", "cancelled"]
