"""A client process: what it is told, what is read of it, and that nothing of it is left."""

import os
import select
import subprocess
import sys
import time

import pytest

from trainer.rollouts.process import ClientProcess, Session


@pytest.fixture
def start(tmp_path, word, left_alive):
    def start(command: str) -> ClientProcess:
        return ClientProcess(
            Session("group.1", "group", "train"),
            command,
            "http://gateway",
            tmp_path,
            {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "WORD": word},
        )

    return start


def ended(client: ClientProcess, timeout_s: float = 20) -> bool:
    return bool(select.select([client], [], [], timeout_s)[0])


def test_a_client_gets_the_contract_and_its_output_is_read(start, tmp_path):
    client = start(
        """python3 -c 'import json, os; json.load(open(os.environ["RELAX_INPUT_JSON"]))["metadata"]["run_id"]
told = {name: value for name, value in os.environ.items() if name.startswith("RELAX_")}
json.dump({"reward": 1, "metadata": told}, open(os.environ["RELAX_OUTPUT_JSON"], "w"))'"""
    )
    assert ended(client)
    exit = client.close()
    assert exit.exit_code == 0 and exit.output["reward"] == 1
    told = exit.output["metadata"]
    assert told["RELAX_BASE_URL"] == "http://gateway" and told["RELAX_SESSION_ID"] == "group.1"
    assert told["RELAX_ROLLOUT_MODE"] == "train" and told["RELAX_GROUP_ID"] == "group"
    assert told["RELAX_OUTPUT_JSON"].startswith(told["RELAX_SESSION_IO_DIR"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("output", ["", "{half", "[1]"])
def test_an_unreadable_output_is_none_and_the_log_is_kept(start, output):
    client = start(f"printf '{output}' >$RELAX_OUTPUT_JSON; echo trouble >&2; exit 3")
    assert ended(client)
    exit = client.close()
    assert (exit.exit_code, exit.output, exit.log) == (3, None, "trouble")


def test_children_left_behind_end_with_their_client(start, left_alive):
    client = start("sleep 600 & exit 0")
    assert ended(client)
    client.close()
    assert left_alive() == []


def test_a_client_that_ignores_sigterm_is_killed_with_children_of_their_own_session(start, left_alive):
    client = start("trap '' TERM; setsid sleep 600 & echo ready; wait; sleep 600")
    while b"ready" not in next((client._io_dir).glob("client.log")).read_bytes():
        time.sleep(0.02)
    client.terminate()
    assert not ended(client, 0.3)
    client.kill()
    assert ended(client)
    assert client.close().exit_code < 0
    assert left_alive() == []


def test_children_of_a_terminated_client_have_time_to_clean_up(start, tmp_path):
    """The client itself is gone at once; its child holds a lock for a moment more."""
    child = f"trap 'sleep 0.3; rm {tmp_path}/lock' EXIT; trap 'exit 1' TERM; touch {tmp_path}/lock; while :; do sleep 0.05; done"
    client = start(f'bash -c "{child}" & wait')
    while not (tmp_path / "lock").exists():
        time.sleep(0.02)
    client.terminate()
    assert ended(client)
    client.close(time.monotonic() + 20)
    assert not (tmp_path / "lock").exists()


def test_clients_end_when_the_trainer_is_killed(tmp_path, word, left_alive):
    script = f"""
import os, sys, time
from pathlib import Path
from trainer.rollouts.process import ClientProcess, Session
ClientProcess(Session("s", "g", "train"), "sleep 600", "http://gateway", Path({str(tmp_path)!r}), {{"PATH": os.environ["PATH"], "HOME": "/nonexistent", "WORD": {word!r}}})
print("ready", flush=True)
time.sleep(600)
"""
    trainer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert trainer.stdout.readline() == b"ready\n"
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    assert left_alive() == []


def test_a_client_that_cannot_be_started_leaves_nothing(tmp_path):
    with pytest.raises(OSError):
        ClientProcess(Session("s", "g", "train"), "true", "http://gateway", tmp_path, {"WORD": "x" * 10_000_000})
    assert list(tmp_path.iterdir()) == []
