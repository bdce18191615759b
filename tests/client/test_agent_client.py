"""The client process over one session: request, output, exit codes, signals, CPU. Outages have a file of their own."""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from client.wire import SessionRequest
from tests.agent_server.conftest import FIX, TASK, eventually, free_port
from tests.client.client_process import (
    CLIENT,
    client_environment,
    error_in,
    group_members,
    run_client,
    start_client,
    wait_for_exit,
)
from tests.client.scripted_server import COMPLETED, CREATED, held, scripted_server, slow
from tests.scripted_model import Hang

BUDGET_S = 0.030  # CPU of one session, however long
SLACK = 3.0  # for slower machines than ours


# --- with the real server ---------------------------------------------------------------------------------------------


def test_a_session_from_launch_to_output(tmp_path, server, model):
    model.scripts["client 1"] = [FIX]
    payload = {"metadata": {"task_id": TASK}}
    ended = run_client(tmp_path / "io", server.url, session_id="client 1", base_url=model.url, payload=payload)
    assert ended.code == 0, ended.stderr
    output = json.loads((tmp_path / "io" / "output.json").read_text())
    assert output["reward"] == 1.0
    metadata = output["metadata"]
    assert metadata["exit_status"] == "Submitted" and metadata["n_calls"] == 2 and metadata["submission"]


def test_a_failed_session_writes_no_output_and_keeps_a_trace(tmp_path, server):
    trace_dir = tmp_path / "trace"
    ended = run_client(tmp_path / "io", server.url, session_id="client 2", AGENT_CLIENT_TRACE_DIR=str(trace_dir))
    assert ended.code == 1 and "model_unreachable" in ended.stderr
    assert not (tmp_path / "io" / "output.json").exists()
    assert "model_unreachable" in (trace_dir / "client_2.failed.json").read_text()
    error = error_in(tmp_path / "io")
    assert (error["boundary"], error["code"]) == ("model", "model_unreachable") and error["message"] in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_stops_the_remote_session(tmp_path, server, model, number):
    key = f"client signal {number}"
    model.scripts[key] = [Hang(60.0)]
    client = start_client(tmp_path / "io", server.url, session_id=key, base_url=model.url)
    eventually(lambda: key in model.requests, what="model call in flight")
    names = {"session_id": key, "group_id": key, "mode": "train", "base_url": model.url, "api_key": key}
    session = server.client.create(SessionRequest(**names))  # the same request gives the client's session
    worker = server.worker(session)
    assert len(server.session_processes(worker)) > 3
    started = time.monotonic()
    os.killpg(client.pid, number)
    assert wait_for_exit(client).code == 143
    eventually(lambda: not server.session_processes(worker), what="worker and sandbox gone")
    assert time.monotonic() - started < 2.0  # the contract's bound
    assert server.client.wait(session, timeout_s=5).status == "cancelled"
    assert not (tmp_path / "io" / "output.json").exists()


def test_an_unknown_task_is_refused(tmp_path, server, model):
    payload = {"metadata": {"task_id": "no-such-task"}}
    ended = run_client(tmp_path / "io", server.url, session_id="client 3", base_url=model.url, payload=payload)
    assert ended.code == 1 and "no-such-task" in ended.stderr
    error = error_in(tmp_path / "io")
    assert error["boundary"] == "client" and "no-such-task" in error["message"]


# --- with a scripted server -------------------------------------------------------------------------------------------


def test_a_session_costs_little_cpu_however_long_it_is(tmp_path):
    """A start and two calls stay in the budget; an hour of waiting adds nothing; there is no child process."""
    totals = []
    for _ in range(5):
        with scripted_server([CREATED, held(COMPLETED, 0.1)], []) as url:
            client = subprocess.Popen([CLIENT], env=client_environment(tmp_path / "io", url))
            _, status, used = os.wait4(client.pid, 0)
            client.returncode = os.waitstatus_to_exitcode(status)
        assert client.returncode == 0
        totals.append(used.ru_utime + used.ru_stime)
    print(f"\nCPU of a session: {min(totals) * 1000:.1f} ms")
    assert min(totals) < BUDGET_S * SLACK

    calls: list[str] = []
    with scripted_server([CREATED, held(COMPLETED, 6.0)], calls) as url:
        client = start_client(tmp_path / "io", url)
        eventually(lambda: len(calls) == 2, what="the long poll")
        eventually(lambda: [state(pid) for pid in group_members(client.pid)] == ["S"], what="the client sleeps")
        before = [cpu_s(pid) for pid in group_members(client.pid)]
        time.sleep(3.0)  # the measured interval
        after = [cpu_s(pid) for pid in group_members(client.pid)]
        assert len(before) == len(after) == 1, "the client is one process"
        print(f"CPU of an hour's waiting: {(after[0] - before[0]) * 1200 * 1000:.1f} ms")
        assert (after[0] - before[0]) * 1200 < 0.010
        assert wait_for_exit(client).code == 0
    assert calls == ["POST /sessions", "GET /sessions/x?wait=3600"]


def state(pid: int) -> str:
    """The process's state letter in /proc: S for asleep."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def cpu_s(pid: int) -> float:
    """Seconds that the process has run, by the scheduler's own account (nanoseconds, not clock ticks)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def test_the_trainers_input_goes_into_the_request(tmp_path):
    metadata = {"task_id": "row 1", "run_id": "run 7", "deep": {"quote": '"\\é\n', "n": [1.5, None]}}
    payload = {"messages": [{}], "metadata": metadata}
    bodies: list[dict] = []
    with scripted_server([CREATED, COMPLETED], [], bodies=bodies) as url:
        ended = run_client(tmp_path / "io", url, session_id='s "1"\\', payload=payload)
    assert ended.code == 0, ended.stderr
    assert bodies == [
        {"session_id": 's "1"\\', "group_id": 's "1"\\', "mode": "train", "base_url": "http://127.0.0.1:9",
         "api_key": 's "1"\\', "metadata": metadata, "run_id": "run 7", "task_id": "row 1"}
    ]  # fmt: skip
    assert SessionRequest.parse(bodies[0]).run_id == "run 7"


@pytest.mark.parametrize("text", ["[]", "{", '{"metadata": [1]}', '{"metadata": "x"}'])
def test_an_unusable_input_is_named(tmp_path, text):
    environment = client_environment(tmp_path / "io", "http://127.0.0.1:9")
    (tmp_path / "io" / "input.json").write_text(text)
    ended = subprocess.run([CLIENT], env=environment, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 1 and "RELAX_INPUT_JSON" in ended.stderr and "Traceback" not in ended.stderr
    assert error_in(tmp_path / "io")["code"] == "config_invalid"


def test_a_chunked_response_is_read(tmp_path):
    data = json.dumps(COMPLETED[1])
    chunks = f"{len(data[:40]):x}\r\n{data[:40]}\r\n{len(data[40:]):X};note\r\n{data[40:]}\r\n0\r\n\r\n"
    with scripted_server([CREATED, (200, chunks, {"Transfer-Encoding": "chunked"})], []) as url:
        ended = run_client(tmp_path / "io", url)
    assert ended.code == 0, ended.stderr


@pytest.mark.parametrize(
    ("responses", "code", "message"),
    [
        ([(400, {"error": {"message": "field 'mode'"}}, {})], 1, "field 'mode'"),
        (
            [CREATED, (404, {"error": {"message": "no session"}}, {})],
            1,
            "session x is unknown; was the work directory ",
        ),
        ([(200, {"status": "queued"}, {})], 1, "no session_id"),
        ([(200, {"session_id": "..", "status": "queued"}, {})], 1, "no session_id"),
        ([(200, {"session_id": 7, "status": "queued"}, {})], 1, "no session_id"),
        ([(200, "<html>log in</html>", {})], 1, "no JSON object; is this an agent server? (HTTP 200: <html>"),
        ([CREATED, (200, {"status": "completed", "reward": None}, {})], 1, "without a reward"),
        ([CREATED, (200, {"status": "completed", "reward": True}, {})], 1, "without a reward"),
        ([CREATED, (200, {"status": "dreaming"}, {})], 1, "session x has an unknown status"),
        ([CREATED, (200, {"status": "failed", "error": {"code": "sandbox_start"}}, {})], 1, "sandbox_start"),
        ([CREATED, (200, {"status": "cancelled"}, {})], 143, "cancelled"),
    ],
    ids=[
        "refused",
        "lost",
        "no id",
        "no usable id",
        "id is a number",
        "no JSON",
        "no reward",
        "reward is a bool",
        "unknown status",
        "failed",
        "cancelled at the server",
    ],
)
def test_other_ends(tmp_path, responses, code, message):
    with scripted_server(responses, []) as url:
        ended = run_client(tmp_path / "io", url)
    assert ended.code == code and message in ended.stderr and not (tmp_path / "io" / "output.json").exists()


@pytest.mark.parametrize(
    ("session_id", "segment"),
    [
        ("agentic_session_shard_3.session-5f-1a2b3c4d", "agentic_session_shard_3.session-5f-1a2b3c4d"),
        ("a/../b?c=d#e %2F", "a%2F..%2Fb%3Fc%3Dd%23e%20%252F"),
        ("~é", "~%C3%A9"),
        ("...", "..."),
    ],
)
def test_any_id_that_can_stand_in_a_url_is_used(tmp_path, session_id, segment):
    created, calls = (200, {"session_id": session_id, "status": "queued"}, {}), []
    with scripted_server([created, held(COMPLETED, 30.0), (204, "", {})], calls) as url:
        client = start_client(tmp_path / "io", url)
        eventually(lambda: len(calls) == 2, what="the long poll")
        os.killpg(client.pid, signal.SIGTERM)
        assert wait_for_exit(client).code == 143
    assert calls == ["POST /sessions", f"GET /sessions/{segment}?wait=3600", f"POST /sessions/{segment}/cancel"]


def test_a_failure_with_a_text_as_its_error_and_a_trace_of_it(tmp_path):
    """As Relax's server and Relax's client have them."""
    failed = {"session_id": "x", "client_session_id": "a.b-c", "status": "failed", "exit_code": 1, "error": "no image"}
    with scripted_server([CREATED, (200, failed, {})], []) as url:
        trace = tmp_path / "trace"
        ended = run_client(tmp_path / "io", url, session_id="a.b-c", AGENT_CLIENT_TRACE_DIR=str(trace))
    assert ended.code == 1 and ended.stderr.splitlines()[-1] == "agent_client: session x failed, no image"
    assert {path.name: json.loads(path.read_text()) for path in trace.iterdir()} == {"a.b-c.failed.json": failed}
    expected = {"boundary": "server", "code": "session_failed", "message": "session x failed, no image"}
    assert error_in(tmp_path / "io") == expected


def test_the_trace_without_an_answer_is_the_error(tmp_path):
    trace = tmp_path / "trace"
    ended = run_client(
        tmp_path / "io", f"http://127.0.0.1:{free_port()}", AGENT_CLIENT_OUTAGE_S="0", AGENT_CLIENT_TRACE_DIR=str(trace)
    )
    assert ended.code == 75 and json.loads((trace / "s.failed.json").read_text()) == error_in(tmp_path / "io")


def test_a_missing_variable_is_named(tmp_path):
    ended = run_client(tmp_path / "io", "http://127.0.0.1:9", RELAX_GROUP_ID="")
    assert ended.code == 1 and "RELAX_GROUP_ID must be set" in ended.stderr


def test_the_key_is_on_no_command_line(tmp_path):
    """Users who may list processes must not read the session's key or the server's token."""
    url, secrets = f"http://127.0.0.1:{free_port()}", {"session_id": "s3ss10n", "AGENT_SERVER_TOKEN": "t0k3n"}
    client = start_client(tmp_path / "io", url, AGENT_CLIENT_OUTAGE_S="3", **secrets)
    command_lines = b""
    while client.poll() is None:
        for pid in group_members(client.pid):
            with suppress(OSError):
                command_lines += Path(f"/proc/{pid}/cmdline").read_bytes()
        time.sleep(0.002)
    wait_for_exit(client)
    assert b"agent_client" in command_lines and not any(secret.encode() in command_lines for secret in secrets.values())


@pytest.mark.parametrize("post_answered", [True, False], ids=["while waiting", "while the POST is in flight"])
def test_a_signal_cancels_once_and_ends_in_time(tmp_path, post_answered):
    """Also with a server that no longer responds."""
    calls: list[str] = []
    waiting = [CREATED, held(COMPLETED, 60.0)]
    posting = [held(CREATED, 60.0), CREATED, held((204, "", {}), 60.0)]
    with scripted_server(waiting if post_answered else posting, calls) as url:
        client = start_client(tmp_path / "io", url, AGENT_CLIENT_TRACE_DIR=str(tmp_path / "trace"))
        eventually(lambda: len(calls) == (2 if post_answered else 1), what="the call that is interrupted")
        started = time.monotonic()
        os.killpg(client.pid, signal.SIGTERM)
        os.killpg(client.pid, signal.SIGINT)
        assert wait_for_exit(client).code == 143
    assert time.monotonic() - started < 8 and calls.count("POST /sessions/x/cancel") == 1
    assert not (tmp_path / "io" / "output.json").exists() and not (tmp_path / "trace").exists()


def test_a_cancel_has_one_deadline_however_slowly_the_server_responds(tmp_path):
    """Each byte comes within a socket's timeout, the whole response does not."""
    calls: list[str] = []
    with scripted_server([CREATED, held(COMPLETED, 60.0), slow((200, "{}" + " " * 100, {}), 0.5)], calls) as url:
        client = start_client(tmp_path / "io", url)
        eventually(lambda: len(calls) == 2, what="the long poll that is interrupted")
        started = time.monotonic()
        os.killpg(client.pid, signal.SIGTERM)
        assert wait_for_exit(client).code == 143
    assert time.monotonic() - started < 8 and calls[2:] == ["POST /sessions/x/cancel"]
