"""Calls that change the server for everyone need a token also where the operator gave none."""

import signal

import requests


def change(server, headers: dict[str, str]) -> int:
    """Status of a call that changes a limit."""
    return requests.patch(f"{server.url}/limits", headers=headers, json={"train": 7}, timeout=5).status_code


def train_limit(server, **options) -> int:
    return requests.get(f"{server.url}/limits", timeout=5, **options).json()["train"]


def test_only_who_reads_the_work_directory_changes_a_server_without_token(own_server):
    server = own_server(AGENT_SERVER_TRAIN_CONCURRENCY="2")
    refused = requests.patch(f"{server.url}/limits", json={"train": 7}, timeout=5)
    assert refused.status_code == 401 and "the file control_token of its work directory" in refused.text
    assert change(server, {"Authorization": "Bearer wrong"}) == 401
    assert train_limit(server) == 2, "reading needs no token"
    assert change(server, server.control) == 200 and train_limit(server) == 7
    assert (server.work_dir / "control_token").stat().st_mode & 0o777 == 0o600
    assert server.work_dir.stat().st_mode & 0o777 == 0o700


def test_a_restart_keeps_the_token(own_server):
    first = own_server()
    token = first.control
    assert len(token["Authorization"]) > 40
    first.process.send_signal(signal.SIGINT)
    first.process.wait(timeout=30)
    second = own_server(first.work_dir)
    assert change(second, token) == 200


def test_the_operators_token_is_the_only_one(own_server):
    server = own_server(AGENT_SERVER_TOKEN="s3cret")
    token = {"Authorization": "Bearer s3cret"}
    assert (change(server, {}), change(server, token)) == (401, 200)
    assert train_limit(server, headers=token) == 7
    assert not (server.work_dir / "control_token").exists()
