"""agent_client.sh, the process a trainer launches: exit codes, output, signals, outages. A tiny contract server plays the other end
where a fault has to be staged; the real server is used for the rest."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.agent_server.conftest import FIX, ROOT, TASK, eventually, free_port, model, server  # noqa: F401 - fixtures
from tests.scripted_model import Hang

CLIENT = ROOT / "client" / "agent_client.sh"


def start_client(folder: Path, agent_server_url: str, *, session_id: str = "s", base_url: str = "http://127.0.0.1:9", payload: dict | None = None, **extra: str):
    folder.mkdir(exist_ok=True)
    (folder / "input.json").write_text(json.dumps(payload or {"messages": [], "metadata": {}}))
    environment = {
        "PATH": os.environ["PATH"], "RELAX_INPUT_JSON": str(folder / "input.json"), "RELAX_OUTPUT_JSON": str(folder / "output.json"),
        "RELAX_SESSION_IO_DIR": str(folder), "RELAX_BASE_URL": base_url, "RELAX_SESSION_ID": session_id, "RELAX_GROUP_ID": session_id,
        "RELAX_ROLLOUT_MODE": "train", "AGENT_SERVER_URL": agent_server_url,
    } | extra  # fmt: skip
    return subprocess.Popen(["/bin/bash", "-lc", f"exec {CLIENT}"], env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)


def end(process: subprocess.Popen, timeout_s: float = 60.0) -> tuple[int, str]:
    _, said = process.communicate(timeout=timeout_s)
    eventually(lambda: not group_members(process.pid), what="no process of the client left")
    return process.returncode, said


def group_members(group: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.getpgid(int(name)) == group:
                found.append(int(name))
        except ProcessLookupError:
            pass
    return found


# --- with the real server ---------------------------------------------------------------------------------------------


def test_a_session_from_launch_to_output(tmp_path, server, model):  # noqa: F811
    model.scripts["client 1"] = [FIX]
    payload = {"metadata": {"task_id": TASK}}
    code, said = end(start_client(tmp_path / "io", server.url, session_id="client 1", base_url=model.url, payload=payload))
    assert code == 0, said
    output = json.loads((tmp_path / "io" / "output.json").read_text())
    assert output["reward"] == 1.0
    assert output["metadata"]["exit_status"] == "Submitted" and output["metadata"]["n_calls"] == 2 and output["metadata"]["submission"]


def test_a_failed_session_writes_no_output_and_keeps_a_trace(tmp_path, server):  # noqa: F811
    code, said = end(start_client(tmp_path / "io", server.url, session_id="client 2", AGENT_CLIENT_TRACE_DIR=str(tmp_path / "trace")))
    assert code == 1 and "model_unreachable" in said
    assert not (tmp_path / "io" / "output.json").exists()
    assert "model_unreachable" in (tmp_path / "trace" / "client_2.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_stops_the_remote_session(tmp_path, server, model, number):  # noqa: F811
    key = f"client signal {number}"
    model.scripts[key] = [Hang(60.0)]
    client = start_client(tmp_path / "io", server.url, session_id=key, base_url=model.url)
    eventually(lambda: key in model.requests, what="model call in flight")
    session = json.loads((tmp_path / "io" / "answer.json").read_text())["session_id"]
    worker = server.worker(session)
    assert len(server.session_processes(worker)) > 3
    started = time.monotonic()
    os.killpg(client.pid, number)
    assert end(client)[0] == 143
    eventually(lambda: not server.session_processes(worker), what="worker and sandbox gone")
    assert time.monotonic() - started < 2.0  # the contract's bound
    assert server.client.wait(session, timeout_s=5).status == "cancelled"
    assert not (tmp_path / "io" / "output.json").exists()


def test_a_given_task_is_asked_for(tmp_path, server, model):  # noqa: F811
    payload = {"metadata": {"task_id": "no-such-task"}}
    code, said = end(start_client(tmp_path / "io", server.url, session_id="client 3", base_url=model.url, payload=payload))
    assert code == 1 and "no-such-task" in said


# --- with a staged server -----------------------------------------------------------------------------------------------


@contextmanager
def staged(answers: list[tuple[int, dict | str, dict]], calls: list[str], port: int = 0) -> Iterator[str]:
    """A server that gives these answers in turn (the last one for ever): status, body, headers."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            calls.append(f"{self.command} {self.path}")
            status, body, headers = answers[min(len(calls), len(answers)) - 1]
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = answer

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        http.server_close()


CREATED = (200, {"session_id": "x", "status": "queued"}, {})
RUNNING = (200, {"session_id": "x", "status": "running"}, {})
DONE = (200, {"session_id": "x", "status": "completed", "reward": 0.5, "agent_exit_status": "Submitted", "submission": "", "n_calls": 1}, {})


def test_a_server_without_long_poll_is_polled_calmly(tmp_path):
    calls: list[str] = []
    with staged([CREATED, RUNNING, RUNNING, DONE], calls) as url:
        started = time.monotonic()
        code, _ = end(start_client(tmp_path / "io", url))
    assert code == 0 and calls == ["POST /sessions"] + ["GET /sessions/x?wait=30"] * 3
    assert time.monotonic() - started > 1.9  # two pauses of a second, no busy loop
    assert json.loads((tmp_path / "io" / "output.json").read_text())["reward"] == 0.5


def test_an_outage_shorter_than_the_limit_is_survived(tmp_path):
    calls: list[str] = []
    port = free_port()
    client = start_client(tmp_path / "io", f"http://127.0.0.1:{port}", AGENT_CLIENT_OUTAGE_S="30")
    time.sleep(1.5)
    with staged([(503, "down", {}), CREATED, (500, "oops", {}), DONE], calls, port):
        code, said = end(client)
    assert code == 0, said
    assert calls.count("POST /sessions") == 2 and len(calls) == 4


def test_a_longer_one_is_not(tmp_path):
    started = time.monotonic()
    code, said = end(start_client(tmp_path / "io", f"http://127.0.0.1:{free_port()}", AGENT_CLIENT_OUTAGE_S="2"))
    assert code == 75 and "is the agent server up?" in said and time.monotonic() - started < 10
    assert not (tmp_path / "io" / "output.json").exists()


def test_too_many_requests_is_waited_out(tmp_path):
    calls: list[str] = []
    with staged([(429, {}, {"Retry-After": "1"}), CREATED, DONE], calls) as url:
        code, _ = end(start_client(tmp_path / "io", url, AGENT_CLIENT_OUTAGE_S="1"))
    assert code == 0 and calls[:2] == ["POST /sessions"] * 2


@pytest.mark.parametrize(
    ("answers", "code", "said"),
    [
        ([(400, {"error": {"message": "field 'mode'"}}, {})], 1, "field 'mode'"),
        ([CREATED, (404, {"error": {"message": "no session"}}, {})], 1, "no session"),
        ([(200, {"status": "queued"}, {})], 1, "without a session_id"),
        ([CREATED, (200, {"status": "dreaming"}, {})], 1, "dreaming"),
        ([CREATED, (200, {"status": "failed", "error": {"code": "sandbox_start"}}, {})], 1, "sandbox_start"),
        ([CREATED, (200, {"status": "cancelled"}, {})], 143, "cancelled"),
    ],
    ids=["refused", "forgotten", "no id", "unknown state", "failed", "cancelled by another"],
)
def test_other_ends(tmp_path, answers, code, said):
    with staged(answers, []) as url:
        found, words = end(start_client(tmp_path / "io", url))
    assert found == code and said in words and not (tmp_path / "io" / "output.json").exists()


def test_a_missing_variable_is_named(tmp_path):
    code, said = end(start_client(tmp_path / "io", "http://127.0.0.1:9", RELAX_GROUP_ID=""))
    assert code == 1 and "RELAX_GROUP_ID must be set" in said


def test_the_key_is_on_no_command_line(tmp_path):
    """Whoever may list processes must not read the session's key or the server's token."""
    client = start_client(tmp_path / "io", f"http://127.0.0.1:{free_port()}", session_id="s3ss10n", AGENT_SERVER_TOKEN="t0k3n", AGENT_CLIENT_OUTAGE_S="3")
    seen = b""
    while client.poll() is None:
        for pid in group_members(client.pid):
            try:
                seen += Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                pass
        time.sleep(0.002)
    end(client)
    assert b"curl" in seen and b"s3ss10n" not in seen and b"t0k3n" not in seen
