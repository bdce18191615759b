"""agent_client.sh, the process a trainer launches: exit codes, output, signals, outages, budget. A tiny contract server plays the other
end where a fault has to be staged; the real server is used for the rest."""

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from client.wire import SessionRequest
from tests.agent_server.conftest import FIX, ROOT, TASK, eventually, free_port, model, server  # noqa: F401 - fixtures
from tests.scripted_model import Hang

CLIENT = ROOT / "client" / "agent_client.sh"
BUDGET_S = 0.030  # CPU of one session, however long
SLACK = 3.0  # for slower machines than ours


def environment_of(
    folder: Path,
    agent_server_url: str,
    *,
    session_id: str = "s",
    base_url: str = "http://127.0.0.1:9",
    payload: dict | None = None,
    **extra: str,
):
    folder.mkdir(exist_ok=True)
    (folder / "input.json").write_text(json.dumps(payload or {"messages": [], "metadata": {}}))
    return {
        "PATH": os.environ["PATH"], "RELAX_INPUT_JSON": str(folder / "input.json"), "RELAX_OUTPUT_JSON": str(folder / "output.json"),
        "RELAX_SESSION_IO_DIR": str(folder), "RELAX_BASE_URL": base_url, "RELAX_SESSION_ID": session_id, "RELAX_GROUP_ID": session_id,
        "RELAX_ROLLOUT_MODE": "train", "AGENT_SERVER_URL": agent_server_url,
    } | extra  # fmt: skip


def start_client(folder: Path, agent_server_url: str, *, program: Path = CLIENT, **given):
    environment = environment_of(folder, agent_server_url, **given)
    return subprocess.Popen(
        ["/bin/bash", "-lc", f"exec {program}"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


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
    code, said = end(
        start_client(tmp_path / "io", server.url, session_id="client 1", base_url=model.url, payload=payload)
    )
    assert code == 0, said
    output = json.loads((tmp_path / "io" / "output.json").read_text())
    assert output["reward"] == 1.0
    assert (
        output["metadata"]["exit_status"] == "Submitted"
        and output["metadata"]["n_calls"] == 2
        and output["metadata"]["submission"]
    )


def test_a_failed_session_writes_no_output_and_keeps_a_trace(tmp_path, server):  # noqa: F811
    code, said = end(
        start_client(tmp_path / "io", server.url, session_id="client 2", AGENT_CLIENT_TRACE_DIR=str(tmp_path / "trace"))
    )
    assert code == 1 and "model_unreachable" in said
    assert not (tmp_path / "io" / "output.json").exists()
    assert "model_unreachable" in (tmp_path / "trace" / "client_2.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_stops_the_remote_session(tmp_path, server, model, number):  # noqa: F811
    key = f"client signal {number}"
    model.scripts[key] = [Hang(60.0)]
    client = start_client(tmp_path / "io", server.url, session_id=key, base_url=model.url)
    eventually(lambda: key in model.requests, what="model call in flight")
    names = {"session_id": key, "group_id": key, "mode": "train", "base_url": model.url, "api_key": key}
    session = server.client.create(SessionRequest(**names))  # asked again, so it is the client's
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
    code, said = end(
        start_client(tmp_path / "io", server.url, session_id="client 3", base_url=model.url, payload=payload)
    )
    assert code == 1 and "no-such-task" in said


# --- with a staged server -----------------------------------------------------------------------------------------------


@contextmanager
def staged(
    answers: list[tuple[int, dict | str, dict]], calls: list[str], port: int = 0, *, bodies: list[dict] | None = None
) -> Iterator[str]:
    """A server that gives these answers in turn (the last one for ever): status (0: the connection is cut), body, headers.
    A header `hold` is not sent: so many seconds go by before the answer."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if bodies is not None and body:
                bodies.append(json.loads(body))
            calls.append(f"{self.command} {self.path}")
            status, body, headers = answers[min(len(calls), len(answers)) - 1]
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            time.sleep(headers.get("hold", 0))
            if not status:
                return
            try:
                self.send_response(status)
                for name, value in headers.items():
                    if name != "hold":
                        self.send_header(name, value)
                if "Transfer-Encoding" not in headers:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                pass  # the client has gone

        do_GET = do_POST = answer

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        http.server_close()


CREATED = (200, {"session_id": "x", "status": "queued"}, {})
RUNNING = (200, {"session_id": "x", "status": "running"}, {})
DONE = (
    200,
    {
        "session_id": "x",
        "status": "completed",
        "reward": 0.5,
        "agent_exit_status": "Submitted",
        "submission": "",
        "n_calls": 1,
    },
    {},
)
CUT = (0, "", {})


def held(answer: tuple[int, dict | str, dict], seconds: float) -> tuple[int, dict | str, dict]:
    return (*answer[:2], answer[2] | {"hold": seconds})


def test_a_session_costs_little_cpu_however_long_it_is(tmp_path):
    """What a start and two calls cost, in total; what an hour of waiting adds: nothing; and no child process at all."""
    totals = []
    for _ in range(5):
        with staged([CREATED, held(DONE, 0.1)], []) as url:
            client = subprocess.Popen([CLIENT], env=environment_of(tmp_path / "io", url))
            _, status, used = os.wait4(client.pid, 0)
            client.returncode = os.waitstatus_to_exitcode(status)
        assert client.returncode == 0
        totals.append(used.ru_utime + used.ru_stime)
    print(f"\nCPU of a session: {min(totals) * 1000:.1f} ms")
    assert min(totals) < BUDGET_S * SLACK

    calls: list[str] = []
    with staged([CREATED, held(DONE, 6.0)], calls) as url:
        client = start_client(tmp_path / "io", url)
        eventually(lambda: len(calls) == 2, what="the held GET")
        time.sleep(0.5)
        before = [cpu_s(pid) for pid in group_members(client.pid)]
        time.sleep(3.0)
        after = [cpu_s(pid) for pid in group_members(client.pid)]
        assert len(before) == len(after) == 1, "the client is one process"
        print(f"CPU of an hour's waiting: {(after[0] - before[0]) * 1200 * 1000:.1f} ms")
        assert (after[0] - before[0]) * 1200 < 0.010
        assert end(client)[0] == 0
    assert calls == ["POST /sessions", "GET /sessions/x?wait=3600"]


def cpu_s(pid: int) -> float:
    """Seconds that the process has run, by the scheduler's own account (nanoseconds, not clock ticks)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def test_what_the_trainer_gives_goes_into_the_request(tmp_path):
    metadata = {"task_id": "row 1", "run_id": "run 7", "deep": {"quote": '"\\é\n', "n": [1.5, None]}}
    bodies: list[dict] = []
    with staged([CREATED, DONE], [], bodies=bodies) as url:
        code, said = end(
            start_client(tmp_path / "io", url, session_id='s "1"\\', payload={"messages": [{}], "metadata": metadata})
        )
    assert code == 0, said
    assert bodies == [
        {"session_id": 's "1"\\', "group_id": 's "1"\\', "mode": "train", "base_url": "http://127.0.0.1:9", "api_key": 's "1"\\',
         "metadata": metadata, "run_id": "run 7", "task_id": "row 1"}
    ]  # fmt: skip
    assert SessionRequest.parse(bodies[0]).run_id == "run 7"


@pytest.mark.parametrize("text", ["[]", "{", '{"metadata": [1]}', '{"metadata": "x"}'])
def test_an_unusable_input_is_named(tmp_path, text):
    environment = environment_of(tmp_path / "io", "http://127.0.0.1:9")
    (tmp_path / "io" / "input.json").write_text(text)
    ran = subprocess.run([CLIENT], env=environment, capture_output=True, text=True, timeout=20)
    assert ran.returncode == 1 and "RELAX_INPUT_JSON" in ran.stderr and "Traceback" not in ran.stderr


def test_a_server_without_long_poll_is_polled_calmly(tmp_path):
    calls: list[str] = []
    with staged([CREATED, (400, {"error": "unknown query"}, {}), RUNNING, RUNNING, DONE], calls) as url:
        started = time.monotonic()
        code, _ = end(start_client(tmp_path / "io", url))
    assert code == 0 and calls == ["POST /sessions", "GET /sessions/x?wait=3600"] + ["GET /sessions/x"] * 3
    assert time.monotonic() - started > 2.9  # pauses of one and two seconds, no busy loop
    assert json.loads((tmp_path / "io" / "output.json").read_text())["reward"] == 0.5


def test_a_server_that_holds_for_less_is_asked_again_at_once(tmp_path):
    calls: list[str] = []
    with staged([CREATED, held(RUNNING, 1.2), held(RUNNING, 1.2), DONE], calls) as url:
        code, _ = end(start_client(tmp_path / "io", url))
    assert code == 0 and len(calls) == 4


def test_a_restart_in_the_middle_of_a_held_answer_is_survived(tmp_path):
    calls: list[str] = []
    broken_off = (200, '{"session_id": "x", "sta', {"Transfer-Encoding": "chunked"})
    with staged([CREATED, held(CUT, 1.0), CUT, broken_off, DONE], calls) as url:
        code, said = end(start_client(tmp_path / "io", url))
    assert code == 0 and calls == ["POST /sessions"] + ["GET /sessions/x?wait=3600"] * 4, said


def test_whoever_cuts_held_answers_is_asked_for_less(tmp_path):
    """A proxy with an idle limit: the first cut may have been a restart, after the second the client asks for three quarters of it."""
    for name in ("agent_client.sh", "agent_client.py"):
        shutil.copy(CLIENT.parent / name, tmp_path / name)
    impatient = (tmp_path / "agent_client.py").read_text().replace("SHORTEST_WAIT_S = 30\n", "SHORTEST_WAIT_S = 2\n")
    (tmp_path / "agent_client.py").write_text(impatient)
    calls: list[str] = []
    with staged([CREATED, held(CUT, 4.2), RUNNING, held((504, "", {}), 4.2), RUNNING, DONE], calls) as url:
        code, said = end(start_client(tmp_path / "io", url, program=tmp_path / "agent_client.sh"))
    assert code == 0, said
    assert [call.rpartition("=")[2] for call in calls[1:]] == ["3600", "3", "3600", "3", "3"]


def test_an_answer_in_chunks_is_read(tmp_path):
    data = json.dumps(DONE[1])
    chunks = f"{len(data[:40]):x}\r\n{data[:40]}\r\n{len(data[40:]):X};note\r\n{data[40:]}\r\n0\r\n\r\n"
    with staged([CREATED, (200, chunks, {"Transfer-Encoding": "chunked"})], []) as url:
        code, said = end(start_client(tmp_path / "io", url))
    assert code == 0, said


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
    started = time.monotonic()
    with staged(
        [
            (429, {}, {"Retry-After": "2"}),
            (429, {}, {"Retry-After": "soon"}),
            CREATED,
            (429, {}, {"Retry-After": "0"}),
            DONE,
        ],
        calls,
    ) as url:
        code, _ = end(start_client(tmp_path / "io", url, AGENT_CLIENT_OUTAGE_S="1"))
    assert code == 0 and calls[:3] == ["POST /sessions"] * 3 and len(calls) == 5
    assert time.monotonic() - started > 4.9  # never a busy loop, whatever the header says


def test_an_outage_is_not_outlasted_by_retry_after(tmp_path):
    started = time.monotonic()
    with staged([(503, {}, {"Retry-After": "99999999"})], []) as url:
        code, _ = end(start_client(tmp_path / "io", url, AGENT_CLIENT_OUTAGE_S="2"))
    assert code == 75 and time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("answers", "code", "said"),
    [
        ([(400, {"error": {"message": "field 'mode'"}}, {})], 1, "field 'mode'"),
        ([CREATED, (404, {"error": {"message": "no session"}}, {})], 1, "does not know it any more: "),
        ([(200, {"status": "queued"}, {})], 1, "without a session_id"),
        ([(200, {"session_id": "../x", "status": "queued"}, {})], 1, "without a session_id"),
        ([(200, "<html>log in</html>", {})], 1, "no JSON object: <html>"),
        ([CREATED, (200, {"status": "completed", "reward": None}, {})], 1, "has no reward"),
        ([CREATED, (200, {"status": "dreaming"}, {})], 1, "dreaming"),
        ([CREATED, (200, {"status": "failed", "error": {"code": "sandbox_start"}}, {})], 1, "sandbox_start"),
        ([CREATED, (200, {"status": "cancelled"}, {})], 143, "cancelled"),
    ],
    ids=[
        "refused",
        "forgotten",
        "no id",
        "no usable id",
        "no JSON",
        "no reward",
        "unknown state",
        "failed",
        "cancelled by another",
    ],
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
    client = start_client(
        tmp_path / "io",
        f"http://127.0.0.1:{free_port()}",
        session_id="s3ss10n",
        AGENT_SERVER_TOKEN="t0k3n",
        AGENT_CLIENT_OUTAGE_S="3",
    )
    seen = b""
    while client.poll() is None:
        for pid in group_members(client.pid):
            try:
                seen += Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                pass
        time.sleep(0.002)
    end(client)
    assert b"agent_client" in seen and b"s3ss10n" not in seen and b"t0k3n" not in seen


@pytest.mark.parametrize("post_answered", [True, False], ids=["while waiting", "while the POST is in flight"])
def test_a_signal_cancels_once_and_ends_in_time(tmp_path, post_answered):
    """Also where the server answers nothing any more."""
    calls: list[str] = []
    answers = (
        [CREATED, held(DONE, 60.0)] if post_answered else [held(CREATED, 60.0), CREATED, held((204, "", {}), 60.0)]
    )
    with staged(answers, calls) as url:
        client = start_client(tmp_path / "io", url, AGENT_CLIENT_TRACE_DIR=str(tmp_path / "trace"))
        eventually(lambda: len(calls) == (2 if post_answered else 1), what="the call that is interrupted")
        started = time.monotonic()
        os.killpg(client.pid, signal.SIGTERM)
        os.killpg(client.pid, signal.SIGINT)
        assert end(client)[0] == 143
    assert time.monotonic() - started < 8 and calls.count("POST /sessions/x/cancel") == 1
    assert not (tmp_path / "io" / "output.json").exists() and not (tmp_path / "trace").exists()
