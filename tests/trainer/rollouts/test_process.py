"""Client processes: environment in, output and error files out, and no process or file left behind."""

import json
import os
import select
import subprocess
import sys
import time

import pytest

from client.wire import ERROR_FILE
from trainer.config.schema import CLIENT_SCRIPT
from trainer.rollouts.process import MAX_ERROR_BYTES, ClientProcess, ClientSession, ErrorRecord


@pytest.fixture
def start(tmp_path, process_tag, leftover_processes):
    def start(command: str) -> ClientProcess:
        return ClientProcess(
            ClientSession("group.1", "group", "train"),
            command,
            "http://gateway",
            tmp_path,
            {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PROCESS_TAG": process_tag},
        )

    return start


def ended(client: ClientProcess, timeout_s: float = 20) -> bool:
    return bool(select.select([client], [], [], timeout_s)[0])


def test_a_client_gets_the_contract_and_its_output_is_read(start, tmp_path):
    client = start(
        """python3 -c 'import json, os; json.load(open(os.environ["RELAX_INPUT_JSON"]))["metadata"]["run_id"]
relax = {name: value for name, value in os.environ.items() if name.startswith("RELAX_")}
json.dump({"reward": 1, "metadata": relax}, open(os.environ["RELAX_OUTPUT_JSON"], "w"))'"""
    )
    assert ended(client)
    exit = client.close()
    assert exit.exit_code == 0 and exit.output["reward"] == 1
    variables = exit.output["metadata"]
    assert variables["RELAX_BASE_URL"] == "http://gateway" and variables["RELAX_SESSION_ID"] == "group.1"
    assert variables["RELAX_ROLLOUT_MODE"] == "train" and variables["RELAX_GROUP_ID"] == "group"
    assert variables["RELAX_OUTPUT_JSON"].startswith(variables["RELAX_SESSION_IO_DIR"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("output", ["", "{half", "[1]"])
def test_an_unreadable_output_is_none_and_the_log_is_kept(start, output):
    client = start(f"printf '{output}' >$RELAX_OUTPUT_JSON; echo trouble >&2; exit 3")
    assert ended(client)
    exit = client.close()
    assert (exit.exit_code, exit.output, exit.log, exit.error) == (3, None, "trouble", None)


def exit_with_error_file(start, tmp_path, content: bytes):
    (tmp_path / "content").write_bytes(content)
    client = start(f"cp {tmp_path}/content $RELAX_SESSION_IO_DIR/{ERROR_FILE}; exit 1")
    assert ended(client)
    return client.close()


@pytest.mark.parametrize("field", [{}, {"field": "task_id"}])
def test_the_error_file_is_read(start, tmp_path, field):
    content = {"boundary": "sandbox", "code": "sandbox_died", "message": "ü", "later": 1, **field}
    exit = exit_with_error_file(start, tmp_path, json.dumps(content).encode())
    assert exit.exit_code == 1
    assert exit.error == ErrorRecord(boundary="sandbox", code="sandbox_died", message="ü", **field)
    assert [path.name for path in tmp_path.iterdir()] == ["content"]


def test_the_repositorys_client_writes_an_error_file(start):
    """Without AGENT_SERVER_URL it fails before it contacts a server."""
    client = start(f"exec sh '{CLIENT_SCRIPT}'")
    assert ended(client)
    exit = client.close()
    assert exit.exit_code == 1 and (exit.error.boundary, exit.error.code) == ("config", "config_invalid")
    assert "AGENT_SERVER_URL" in exit.error.message


ERROR = b'{"boundary": "sandbox", "code": "sandbox_died", "message": %s}'


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not JSON",
        b'["sandbox", "sandbox_died", "message"]',
        b"NaN",
        b"[" * 20_000,
        b'"\xff"',
        ERROR % b"NaN",
        ERROR % b"1",
        ERROR % b'"\\ud800"',  # half a surrogate pair
        ERROR.replace(b'"sandbox"', b'""') % b'"x"',
        ERROR.replace(b'"sandbox"', b'["sandbox"]') % b'"x"',
        b'{"boundary": "sandbox", "message": "no code"}',
        ERROR % (b'"%s"' % (b"x" * 10_000_000)),
        ERROR % (b'"%s"' % (b"x" * MAX_ERROR_BYTES)),
    ],
    ids=lambda content: content[:80].decode(errors="replace"),
)
def test_a_malformed_error_file_is_ignored(start, tmp_path, content):
    exit = exit_with_error_file(start, tmp_path, content)
    assert (exit.exit_code, exit.error) == (1, None)


@pytest.mark.parametrize("make", ["mkfifo", "mkdir", "ln -s /dev/zero"])
def test_an_error_file_that_is_no_file_does_not_block_the_trainer(start, make):
    client = start(f"{make} $RELAX_SESSION_IO_DIR/{ERROR_FILE}; exit 1")
    assert ended(client)
    assert client.close().error is None


def test_children_left_behind_end_with_their_client(start, leftover_processes):
    client = start("sleep 600 & exit 0")
    assert ended(client)
    client.close()
    assert leftover_processes() == []


def test_a_client_that_ignores_sigterm_is_killed_with_children_of_their_own_session(start, leftover_processes):
    client = start("trap '' TERM; setsid sleep 600 & echo ready; wait; sleep 600")
    while b"ready" not in next((client._io_dir).glob("client.log")).read_bytes():
        time.sleep(0.02)
    client.terminate()
    assert not ended(client, 0.3)
    client.kill()
    assert ended(client)
    assert client.close().exit_code < 0
    assert leftover_processes() == []


def test_children_of_a_terminated_client_have_time_to_clean_up(start, tmp_path):
    """The client ends at once; its child holds a lock for a moment longer."""
    traps = f"trap 'sleep 0.3; rm {tmp_path}/lock' EXIT; trap 'exit 1' TERM"
    child = f"{traps}; touch {tmp_path}/lock; while :; do sleep 0.05; done"
    client = start(f'bash -c "{child}" & wait')
    while not (tmp_path / "lock").exists():
        time.sleep(0.02)
    client.terminate()
    assert ended(client)
    client.close(time.monotonic() + 20)
    assert not (tmp_path / "lock").exists()


def test_clients_end_when_the_trainer_is_killed(tmp_path, process_tag, leftover_processes):
    script = f"""
import os, sys, time
from pathlib import Path
from client.wire import ERROR_FILE
from trainer.config.schema import CLIENT_SCRIPT
from trainer.rollouts.process import MAX_ERROR_BYTES, ClientProcess, ErrorRecord, ClientSession
env = {{"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PROCESS_TAG": {process_tag!r}}}
ClientProcess(ClientSession("s", "g", "train"), "sleep 600", "http://gateway", Path({str(tmp_path)!r}), env)
print("ready", flush=True)
time.sleep(600)
"""
    trainer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert trainer.stdout.readline() == b"ready\n"
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    assert leftover_processes() == []


def test_a_client_that_cannot_be_started_leaves_nothing(tmp_path):
    with pytest.raises(OSError):
        ClientProcess(
            ClientSession("s", "g", "train"), "true", "http://gateway", tmp_path, {"PROCESS_TAG": "x" * 10_000_000}
        )
    assert list(tmp_path.iterdir()) == []
