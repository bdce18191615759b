"""error.json, the reason of a failed client: one test for each way a client ends."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from client.errors import ConfigError, ServerUnreachable
from client.wire import ERROR_FILE
from tests.agent_server.conftest import eventually, free_port
from tests.client.client_process import CLIENT, client_environment, error_in, run_client, start_client, wait_for_exit
from tests.client.scripted_server import COMPLETED, CREATED, held, scripted_server

SANDBOX_ERROR = {"boundary": "sandbox", "code": "sandbox_start", "message": 'no room: "é"\nline 2', "field": "image"}
CANCEL_ERROR = {"boundary": "cancel", "code": "cancelled", "message": "cancelled by the operator"}
REFUSAL = {"boundary": "client", "code": "invalid_request", "message": "field 'mode': wrong", "field": "mode"}


def view(status: str, **fields) -> tuple[int, dict, dict]:
    return (200, {"session_id": "x", "status": status} | fields, {})


@pytest.mark.parametrize(
    ("end", "code", "error"),
    [
        (view("failed", error=SANDBOX_ERROR), 1, SANDBOX_ERROR),
        (view("cancelled", error=CANCEL_ERROR), 143, CANCEL_ERROR),
    ],
    ids=["failed", "cancelled"],
)
def test_the_servers_error_is_passed_on_as_it_is(tmp_path, end, code, error):
    with scripted_server([CREATED, end], []) as url:
        ended = run_client(tmp_path / "io", url)
    assert ended.code == code and error_in(tmp_path / "io") == error
    last_line = ended.stderr.splitlines()[-1]
    assert " ".join(error["message"].split()) in last_line and "{" not in last_line


def test_a_refused_request_has_the_servers_error(tmp_path):
    with scripted_server([(400, {"error": REFUSAL}, {})], []) as url:
        assert run_client(tmp_path / "io", url).code == 1
    assert error_in(tmp_path / "io") == REFUSAL


@pytest.mark.parametrize(
    ("responses", "code", "boundary_and_code", "message"),
    [
        (
            [(403, "<html>go away</html>", {})],
            1,
            ("client", "bad_request"),
            "the request was refused (HTTP 403: <html>",
        ),
        ([CREATED, (404, {}, {})], 1, ("server", "server_error"), "was the work directory removed?"),
        ([(200, {}, {})], 1, ("server", "server_error"), "no session_id"),
        ([(200, "<html>", {})], 1, ("server", "server_error"), "no JSON object"),
        ([CREATED, view("dreaming")], 1, ("server", "server_error"), "unknown status"),
        ([CREATED, view("completed", reward=None)], 1, ("server", "server_error"), "without a reward"),
        ([CREATED, view("failed")], 1, ("server", "session_failed"), "session x failed"),
        ([CREATED, view("cancelled", error="why")], 143, ("cancel", "cancelled"), "session x cancelled"),
    ],
    ids=["refused", "lost", "no id", "no JSON", "unknown status", "no reward", "no reason", "no reason to cancel"],
)
def test_other_faults_of_the_server_have_the_clients_error(tmp_path, responses, code, boundary_and_code, message):
    with scripted_server(responses, []) as url:
        assert run_client(tmp_path / "io", url).code == code
    error = error_in(tmp_path / "io")
    assert (error["boundary"], error["code"]) == boundary_and_code and message in error["message"]


def test_an_outage(tmp_path):
    ended = run_client(tmp_path / "io", f"http://127.0.0.1:{free_port()}", AGENT_CLIENT_OUTAGE_S="1")
    error = error_in(tmp_path / "io")
    assert ended.code == 75 and "is the agent server up?" in error["message"]
    assert (error["boundary"], error["code"]) == (ServerUnreachable.boundary, ServerUnreachable.code)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RELAX_GROUP_ID": ""}, "RELAX_GROUP_ID must be set"),
        ({"AGENT_SERVER_URL": "localhost:8600"}, "AGENT_SERVER_URL=localhost:8600 must be http://"),
        ({"AGENT_SERVER_URL": "http://host:port"}, "AGENT_SERVER_URL=http://host:port must be http://"),
        ({"AGENT_CLIENT_OUTAGE_S": "long"}, "AGENT_CLIENT_OUTAGE_S=long must be a whole number"),
        ({"RELAX_INPUT_JSON": "/"}, "RELAX_INPUT_JSON=/ must be a JSON object"),
    ],
    ids=["missing", "URL without scheme", "URL without port number", "outage", "input"],
)
def test_a_wrong_configuration(tmp_path, environment, message):
    environment = client_environment(tmp_path / "io", "http://127.0.0.1:9") | environment
    assert subprocess.run([CLIENT], env=environment, capture_output=True, timeout=20).returncode == 1
    error = error_in(tmp_path / "io")
    assert (error["boundary"], error["code"]) == (ConfigError.boundary, ConfigError.code)
    assert error["message"].startswith(message)


def test_an_output_that_cannot_be_written(tmp_path):
    with scripted_server([CREATED, COMPLETED], []) as url:
        assert run_client(tmp_path / "io", url, RELAX_OUTPUT_JSON=str(tmp_path / "none" / "output.json")).code == 1
    error = error_in(tmp_path / "io")
    assert (error["boundary"], error["code"]) == ("client", "no_output") and "RELAX_OUTPUT_JSON=" in error["message"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal(tmp_path, number):
    calls: list[str] = []
    with scripted_server([CREATED, held(COMPLETED, 30.0), (204, "", {})], calls) as url:
        client = start_client(tmp_path / "io", url)
        eventually(lambda: len(calls) == 2, what="the long poll")
        os.killpg(client.pid, number)
        ended = wait_for_exit(client)
    assert ended.code == 143 and ended.stderr.splitlines()[-1] == "agent_client: cancelled"
    assert error_in(tmp_path / "io") == {"boundary": "cancel", "code": "cancelled", "message": "cancelled"}


def test_a_defect_of_the_client(tmp_path):
    """Any other exception has its traceback on stderr and an error of the client's own."""
    for name in ("agent_client.sh", "agent_client.py"):
        shutil.copy(CLIENT.parent / name, tmp_path / name)
    signature = "def request_body(environment):\n"
    broken = (tmp_path / "agent_client.py").read_text().replace(signature, f"{signature}    1 / 0\n")
    (tmp_path / "agent_client.py").write_text(broken)
    ended = run_client(tmp_path / "io", "http://127.0.0.1:9", program=tmp_path / "agent_client.sh")
    assert ended.code == 1 and "Traceback" in ended.stderr
    error = error_in(tmp_path / "io")
    assert (error["boundary"], error["code"]) == ("client", "internal") and "ZeroDivisionError" in error["message"]


def test_no_python_at_all(tmp_path):
    """The script as it is, save for the names of the two interpreters."""
    script = tmp_path / "agent_client.sh"
    script.write_text(CLIENT.read_text().replace("/usr/bin/python3 python3", "/usr/bin/no-python no-python"))
    environment = client_environment(tmp_path / "io", "http://127.0.0.1:9")
    ended = subprocess.run(["/bin/sh", script], env=environment, capture_output=True, text=True, timeout=20)
    error = error_in(tmp_path / "io")
    assert ended.returncode == 1 and ended.stderr == f"agent_client: {error['message']}\n"
    assert (error["boundary"], error["code"]) == ("config", "setup_incomplete")


def test_a_completed_session_leaves_none(tmp_path):
    with scripted_server([CREATED, COMPLETED], []) as url:
        assert run_client(tmp_path / "io", url).code == 0
    assert {path.name for path in (tmp_path / "io").iterdir()} == {"input.json", "output.json"}


def test_without_a_folder_nothing_is_written(tmp_path):
    environment = client_environment(tmp_path / "io", "http://127.0.0.1:9", RELAX_GROUP_ID="", RELAX_SESSION_IO_DIR="")
    ended = subprocess.run([CLIENT], env=environment, capture_output=True, text=True, timeout=20, cwd=tmp_path)
    assert ended.returncode == 1 and ended.stderr.splitlines() == [
        "agent_client: RELAX_GROUP_ID must be set; the trainer sets it for every session"
    ]
    assert not list(tmp_path.rglob(f"{ERROR_FILE}*"))


@pytest.mark.parametrize(
    ("failure", "code"),
    [({"RELAX_GROUP_ID": ""}, 1), ({"AGENT_CLIENT_OUTAGE_S": "0"}, 75)],
    ids=["configuration", "outage"],
)
def test_a_folder_that_cannot_be_written_does_not_change_the_exit_code(tmp_path, failure, code):
    """A file in place of the folder, since root may write into a read-only one."""
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    for folder in (blocked, tmp_path / "missing"):
        ended = run_client(tmp_path / "io", "http://127.0.0.1:9", RELAX_SESSION_IO_DIR=str(folder), **failure)
        assert ended.code == code and f"RELAX_SESSION_IO_DIR={folder} cannot be written" in ended.stderr
        assert ended.stderr.splitlines()[-1].startswith("agent_client: ") and "Traceback" not in ended.stderr
    assert not (tmp_path / "missing").exists()


def test_a_read_only_folder_does_not_change_the_exit_code(tmp_path):
    environment = client_environment(tmp_path / "io", "http://127.0.0.1:9", RELAX_GROUP_ID="")
    (tmp_path / "io").chmod(0o555)
    without_capabilities = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"] if os.geteuid() == 0 else []
    ended = subprocess.run([*without_capabilities, CLIENT], env=environment, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 1 and "RELAX_SESSION_IO_DIR=" in ended.stderr, ended.stderr
    assert error_in(tmp_path / "io") is None


def test_the_file_is_whole_while_it_is_replaced(tmp_path):
    """Readers see the old file or the new one: it is renamed, never rewritten."""
    (tmp_path / "io").mkdir()
    path = tmp_path / "io" / ERROR_FILE
    path.write_text(json.dumps({"code": "old"}))
    with path.open() as old:
        environment = client_environment(tmp_path / "io", "http://127.0.0.1:9", RELAX_GROUP_ID="")
        command = [sys.executable, "-I", "-S", str(CLIENT.with_suffix(".py"))]
        assert subprocess.run(command, env=environment, capture_output=True, timeout=20).returncode == 1
        assert json.load(old) == {"code": "old"} and error_in(tmp_path / "io")["code"] == "config_invalid"
