"""Retention of records across a restart of the server."""

import time

import pytest

from agent_server.config import Settings
from agent_server.scheduling.retention import Retention
from agent_server.store.store import Store
from client.errors import NotFound
from client.wire import Status
from tests.agent_server.conftest import DEMO, ONE_TASK, session_request


def test_clients_have_time_to_ask_for_what_ended_while_the_server_was_down(tmp_path):
    settings = Settings(data_path=DEMO / "tasks", sif_dir=DEMO / "images", work_dir=tmp_path, record_retention_s=0.5)
    for folder in (settings.trajectory_dir, settings.log_dir):
        folder.mkdir()
    store = Store(tmp_path)
    session = store.submit(session_request("s", "g"), ONE_TASK)[0]
    assert store.request_cancel(session) == Status.CANCELLED
    time.sleep(0.6)
    retention = Retention(settings, store)
    retention.sweep()
    assert store.view(session)
    time.sleep(0.6)
    retention.sweep()
    with pytest.raises(NotFound):
        store.view(session)
    store.close()
