"""Invalid requests and configurations: each has a clear error, and nothing is lost."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet
import pytest
import requests

from client.errors import DiskFull
from tests.agent_server.conftest import DEMO, FIX, ROOT, TASK, eventually, server_environment, shut_down

GOOD = {"session_id": "s", "group_id": "g", "mode": "train", "base_url": "http://127.0.0.1:9", "api_key": "k"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        *[({name: value for name, value in GOOD.items() if name != missing}, missing) for missing in GOOD],
        (GOOD | {"mode": "test"}, "mode"),
        (GOOD | {"session_id": 3}, "session_id"),
        (GOOD | {"session_id": ""}, "session_id"),
        (GOOD | {"base_url": "localhost:1"}, "base_url"),
        (GOOD | {"metadata": []}, "metadata"),
    ],
    ids=str,
)
def test_a_wrong_body_is_refused_by_its_field(server, body, field):
    answer = requests.post(f"{server.url}/sessions", json=body, timeout=10)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["field"] == field and f"'{field}'" in error["message"] and error["code"] == "invalid_request"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"text"', b"\xff"])
def test_a_body_that_is_no_json_object_is_refused(server, data):
    answer = requests.post(f"{server.url}/sessions", data=data, timeout=10)
    assert answer.status_code == 400 and "JSON object" in answer.json()["error"]["message"]


def test_an_unknown_task_is_refused_with_the_nearest(server):
    answer = requests.post(
        f"{server.url}/sessions", json=GOOD | {"session_id": "no task", "task_id": TASK + "s"}, timeout=10
    )
    assert answer.status_code == 404 and TASK in answer.json()["error"]["message"]


@pytest.mark.parametrize("call", [("GET", "/sessions/none"), ("POST", "/sessions/none/cancel"), ("GET", "/nowhere")])
def test_an_unknown_session_or_path_is_not_found(server, call):
    answer = requests.request(call[0], server.url + call[1], timeout=10)
    assert answer.status_code == 404 and answer.json()["error"]["message"]


def test_a_wrong_wait_is_refused(server, model):
    session = server.create(model, [])
    for wait in ("soon", "-1", "nan", "inf"):
        assert requests.get(f"{server.url}/sessions/{session}", params={"wait": wait}, timeout=10).status_code == 400
    server.client.wait(session, timeout_s=30)


def test_a_configured_token_is_required(own_server):
    server = own_server(AGENT_SERVER_TOKEN="s3cret")
    assert requests.get(f"{server.url}/tasks", timeout=10).status_code == 401
    assert requests.get(f"{server.url}/tasks", headers={"Authorization": "Bearer wrong"}, timeout=10).status_code == 401
    assert requests.get(f"{server.url}/tasks", headers={"Authorization": "Bearer s3cret"}, timeout=10).ok


def start(tmp_path: Path, **settings: str) -> subprocess.CompletedProcess:
    environment = server_environment(tmp_path / "work")
    return subprocess.run(
        [sys.executable, "-m", "agent_server"],
        cwd=ROOT,
        env=environment | settings,
        capture_output=True,
        text=True,
        timeout=60,
    )


def rows(tmp_path: Path, **changes) -> str:
    """A copy of the demo's training rows with columns replaced, or removed where the value is None."""
    table = parquet.read_table(DEMO / "tasks" / "train.parquet")
    for name, value in changes.items():
        table = table.drop_columns([name])
        if value is not None:
            table = table.append_column(name, pyarrow.array([value] * len(table)))
    path = tmp_path / f"{'-'.join(changes)}.parquet"
    parquet.write_table(table, path)
    return str(path)


def test_the_server_does_not_start_on_a_wrong_configuration(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.parquet").write_text("no parquet")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "demo__quickstart__1.sif").write_bytes(b"no image" * 100)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for settings, expected in [
            ({"R2E_DATA_PATH": str(tmp_path / "none")}, "R2E_DATA_PATH"),
            ({"R2E_DATA_PATH": str(tmp_path / "empty")}, "has no train.parquet"),
            ({"R2E_DATA_PATH": str(tmp_path / "text.parquet")}, "cannot be read as parquet"),
            ({"R2E_DATA_PATH": rows(tmp_path, problem_statement=None)}, "its problem_statement is empty"),
            ({"R2E_DATA_PATH": rows(tmp_path, test_cmd="")}, "it has no test_cmd"),
            ({"R2E_DATA_PATH": rows(tmp_path, instance_id="same")}, "its id occurs twice"),
            ({"R2E_SIF_DIR": str(tmp_path / "empty")}, "1 of 1 images that the rows name are missing"),
            ({"R2E_SIF_DIR": str(broken)}, "is not a SIF file"),
            ({"AGENT_SERVER_PORT": port}, f"cannot listen on 127.0.0.1:{port}"),
            ({"AGENT_SERVER_PORT": "high"}, "AGENT_SERVER_PORT='high'"),
            ({"AGENT_SERVER_TRAIN_CONCURENCY": "4"}, "did you mean AGENT_SERVER_TRAIN_CONCURRENCY?"),
            (
                {"AGENT_SERVER_SESSION_TIMEOUT_S": "10"},
                "must hold 4 starts of sandboxes",
            ),
            ({"AGENT_SERVER_AGENT_CONFIG": "none.yaml"}, "AGENT_SERVER_AGENT_CONFIG=none.yaml"),
            ({"PATH": os.path.dirname(sys.executable)}, "apptainer must be on the PATH"),
        ]:
            result = start(tmp_path, **settings)
            assert result.returncode == 2 and expected in result.stderr, (settings, result.stderr)
            assert "Traceback" not in result.stderr


@pytest.fixture
def cut_image(tmp_path, demo_image):
    """An image folder whose SIF has a good head and no end, as an interrupted copy leaves it."""
    folder = tmp_path / "images"
    folder.mkdir()
    with demo_image.open("rb") as whole:
        (folder / demo_image.name).write_bytes(whole.read(demo_image.stat().st_size // 3))
    return folder


def test_a_cut_image_is_a_typed_failure(own_server, model, cut_image):
    server = own_server(R2E_SIF_DIR=str(cut_image))
    view = server.run(model, [FIX])
    assert (view.status, view.error["boundary"], view.error["code"], view.reward) == (
        "failed",
        "sandbox",
        "image_corrupt",
        None,
    )
    (cut_image / "demo__quickstart__1.sif").unlink()
    view = server.run(model, [FIX])
    assert (view.status, view.error["code"]) == ("failed", "image_missing")


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)  # a server that a failed test left may still be there


def test_a_full_disk_refuses_new_sessions_and_loses_none(own_server, model, small_disk):
    server = own_server(small_disk / "work")
    running = server.create(model, [f"{FIX}\nsleep 3"], key="runs while the disk fills")
    eventually(lambda: "runs while the disk fills" in model.requests)
    filler = small_disk / "filler"
    fill(filler)
    answer = requests.post(f"{server.url}/sessions", json=GOOD | {"session_id": "too late"}, timeout=10)
    assert (
        answer.status_code == DiskFull.http_status
        and answer.json()["error"]["code"] == "disk_full"
        and "free some" in answer.json()["error"]["message"]
    )
    filler.unlink()
    assert server.client.wait(running, timeout_s=60).reward == 1.0
    assert server.run(model, [FIX]).reward == 1.0
    shut_down(server)


def fill(path: Path) -> None:
    """Write until the disk refuses."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(2**20))
        except OSError:
            pass
