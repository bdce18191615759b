"""The batch: a real agent server, a played endpoint with a provider's faults, and the command itself as a process."""

import json
import os
import select
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from tests.agent_server.conftest import DEMO, ROOT, eventually, free_port, launch, own_server, shut_down  # noqa: F401 - a fixture
from tests.client.evaluation.fake_endpoint import KEY, Fault, serving

ROWS = parquet.read_table(DEMO / "tasks" / "train.parquet").to_pylist()[:2]
A, B = (row["instance_id"] for row in ROWS)
TEXT = {row["instance_id"]: row["problem_statement"] for row in ROWS}
FIX = {row["instance_id"]: f"git apply -R <<'END'\n{row['patch'].rstrip()}\nEND" for row in ROWS}
WRONG = {row["instance_id"]: f"echo 'raise ValueError' >> {row['file']}" for row in ROWS}
QUOTA = b'{"error": {"message": "You exceeded your current quota", "type": "insufficient_quota", "code": "insufficient_quota"}}'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = launch(tmp_path_factory.mktemp("batch") / "work")
    yield running
    shut_down(running)


@pytest.fixture
def endpoint():
    """Solves both tasks, each time."""
    with serving() as played:
        played.plays = {TEXT[task]: [FIX[task]] for task in (A, B)}
        yield played


@pytest.fixture
def batch(server, endpoint, tmp_path):
    """Starts the command on the two tasks; whatever still runs at the end is killed."""
    started = []

    def start(
        *options: str, server_url: str = "", environment: dict | None = None, prefix: tuple[str, ...] = ()
    ) -> subprocess.Popen:
        command = [*prefix, sys.executable, "-m", "client.evaluation", "--server", server_url or server.url]
        command += ["--base-url", endpoint.url, "--model", "some-model"]
        command += [
            "--split",
            "train",
            "--tasks",
            A,
            B,
            "--api-key-env",
            "THE_KEY",
            "--out",
            str(tmp_path / "out"),
            *options,
        ]
        environment = os.environ | {"THE_KEY": KEY} | (environment or {})
        started.append(
            subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def finish(process: subprocess.Popen, code: int) -> tuple[str, str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, out + err
    return out, err


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def results(tmp_path: Path) -> dict[tuple[str, int], dict]:
    return {(line["task_id"], line["sample"]): line for line in lines(tmp_path / "out" / "results.jsonl")}


def summary(tmp_path: Path) -> dict:
    return json.loads((tmp_path / "out" / "summary.json").read_text())


def test_two_tasks_two_samples(batch, endpoint, server, tmp_path):
    endpoint.plays[TEXT[B]] = [WRONG[B], FIX[B]]
    out, err = finish(
        batch(
            "--samples",
            "2",
            "--concurrency",
            "2",
            "--temperature",
            "0.7",
            "--max-tokens",
            "99",
            "--extra",
            '{"top_p": 0.5}',
        ),
        0,
    )

    found = results(tmp_path)
    assert found.keys() == {(task, index) for task in (A, B) for index in (0, 1)}
    assert {(line["status"], line["exit_status"], line["calls"]) for line in found.values()} == {
        ("completed", "Submitted", 2)
    }
    assert (
        sorted(line["reward"] for line in found.values()) == [0.0, 1.0, 1.0, 1.0]
        and found[A, 0]["reward"] == found[A, 1]["reward"] == 1.0
    )
    told = summary(tmp_path)
    assert (told["pass_at"]["1"]["value"], told["pass_at"]["2"]["value"]) == (0.75, 1.0)
    assert (told["completed"], told["resolved"], told["calls"], told["prompt_tokens"], told["completion_tokens"]) == (
        4,
        3,
        8,
        8,
        8,
    )
    assert (told["infrastructure_failures"], told["not_run"], told["failures"], told["exit_statuses"]) == (
        0,
        0,
        {},
        {"Submitted": 4},
    )
    assert "75.0% (50.0% to 100.0%; 2 tasks)" in out and "4 of 4 samples completed, 3 resolved (75.0%)" in err

    assert endpoint.keys == {f"Bearer {KEY}"}
    assert {(r["model"], r["temperature"], r["max_tokens"], r["top_p"]) for r in endpoint.requests} == {
        ("some-model", 0.7, 99, 0.5)
    }
    kept = [path for folder in (tmp_path / "out", server.work_dir) for path in folder.rglob("*") if path.is_file()]
    assert len(kept) > 5 and not [path for path in kept if KEY.encode() in path.read_bytes()]

    before = len(endpoint.requests)
    finish(batch("--samples", "2", "--temperature", "0.7", "--max-tokens", "99", "--extra", '{"top_p": 0.5}'), 0)
    assert len(endpoint.requests) == before + 1, "a finished batch only probes"


def test_predictions_are_those_that_swebench_reads(batch, endpoint, tmp_path):
    from swebench.harness.utils import get_predictions_from_file

    endpoint.plays[TEXT[B]] = [WRONG[B], FIX[B]]
    finish(batch("--samples", "2"), 0)
    for index in (0, 1):
        read = get_predictions_from_file(str(tmp_path / "out" / f"predictions-{index}.jsonl"), "", "")
        assert {p["instance_id"]: (p["model_name_or_path"], p["model_patch"]) for p in read} == {
            task: ("some-model", results(tmp_path)[task, index]["submission"]) for task in (A, B)
        }
    assert "diff --git" in results(tmp_path)[A, 0]["submission"]


@pytest.mark.parametrize("only_resolved", [False, True])
def test_trajectories_are_what_went_through(batch, endpoint, tmp_path, only_resolved):
    endpoint.plays[TEXT[B]] = [WRONG[B]]
    finish(batch(*["--only-resolved"] * only_resolved), 0)
    kept = {line["task_id"]: line for line in lines(tmp_path / "out" / "trajectories.jsonl")}
    assert {task: line["reward"] for task, line in kept.items()} == ({A: 1.0} if only_resolved else {A: 1.0, B: 0.0})
    last = [
        request
        for request in endpoint.requests
        if TEXT[A] in str([message["content"] for message in request["messages"]])
    ][-1]
    assert kept[A]["messages"][:-1] == last["messages"]
    assert [m["role"] for m in kept[A]["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    assert FIX[A] in kept[A]["messages"][2]["content"] and "COMPLETE_TASK" in kept[A]["messages"][-1]["content"]


def test_trajectories_of_tool_calls_hold_the_tools(batch, endpoint, own_server, tmp_path):  # noqa: F811
    own = own_server(AGENT_SERVER_AGENT_CONFIG="tools")
    finish(batch(server_url=own.url), 0)
    kept = {line["task_id"]: line for line in lines(tmp_path / "out" / "trajectories.jsonl")}
    assert [tool["function"]["name"] for tool in kept[A]["tools"]] == ["bash"]
    assert kept[A]["messages"][-1]["tool_calls"][0]["function"]["name"] == "bash" and kept[A]["reward"] == 1.0


def test_killed_and_resumed(batch, endpoint, server, tmp_path):
    """Samples on record are not run again, whatever the kill tore; the session it left behind is cancelled."""
    endpoint.fault = lambda text, turn: Fault(hang_s=60) if text == TEXT[B] and turn == 1 else None
    process = batch("--samples", "2", "--concurrency", "1")
    out = tmp_path / "out"
    eventually(
        lambda: len(lines(out / "results.jsonl")) == 1 and endpoint.begun.get(TEXT[B]),
        within_s=60,
        what="one recorded, one in the middle",
    )
    process.kill()
    process.communicate()
    [left] = [
        line["session_id"]
        for line in lines(out / "open.jsonl")
        if line["session_id"] != lines(out / "results.jsonl")[0]["session_id"]
    ]
    recorded = (out / "results.jsonl").read_text()
    with (out / "results.jsonl").open("a") as file:
        file.write('{"task_id": "torn')
    with (out / "trajectories.jsonl").open("a") as file:
        file.write(json.dumps({"messages": [], "task_id": B, "sample": 0, "session_id": left, "reward": 1.0}) + "\n")

    endpoint.fault = lambda text, turn: None
    finish(batch("--samples", "2", "--concurrency", "1"), 0)
    assert server.client.get(left).status == "cancelled"
    assert (out / "results.jsonl").read_text().startswith(recorded)
    assert len(lines(out / "results.jsonl")) == 4 and len(results(tmp_path)) == 4 and summary(tmp_path)["resolved"] == 4
    assert endpoint.begun == {TEXT[A]: 2, TEXT[B]: 3}, "only the sample that was cut began twice"
    assert sorted(t["session_id"] for t in lines(out / "trajectories.jsonl")) == sorted(
        r["session_id"] for r in results(tmp_path).values()
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_resumed(batch, endpoint, server, tmp_path, number):
    endpoint.fault = lambda text, turn: Fault(hang_s=60) if text and turn == 1 else None
    process = batch("--concurrency", "2")
    eventually(lambda: sum(endpoint.begun.values()) == 2, within_s=60, what="two in the middle")
    open_ones = [line["session_id"] for line in lines(tmp_path / "out" / "open.jsonl")]
    process.send_signal(number)
    _, err = finish(process, 130)
    assert "the same command goes on" in err and summary(tmp_path)["not_run"] == 2
    assert [server.client.get(session_id).status for session_id in open_ones] == ["cancelled"] * 2
    endpoint.fault = lambda text, turn: None
    finish(batch("--concurrency", "2"), 0)
    assert summary(tmp_path)["resolved"] == 2


@pytest.mark.parametrize("headers", [{"Retry-After": "1"}, {"retry-after-ms": "300"}, {}])
def test_a_rate_limit_is_waited_out(batch, endpoint, tmp_path, headers):
    refused = []

    def fault(text: str, turn: int) -> Fault | None:
        if text and len(refused) < 3:
            refused.append(time.monotonic())
            return Fault(
                429,
                b'{"error": {"message": "slow down", "type": "rate_limit", "code": "rate_limit_exceeded"}}',
                headers,
            )
        return None

    endpoint.fault = fault
    finish(batch("--concurrency", "2", "--patience-s", "0.01"), 0)
    assert len(refused) == 3 and summary(tmp_path)["resolved"] == 2
    assert max(line["lost_s"] for line in results(tmp_path).values()) > 0.25


def test_a_used_up_quota_stops_the_run(batch, endpoint, server, tmp_path):
    """At once and for all samples; what was finished stays, the rest is neither scored nor lost."""
    endpoint.fault = lambda text, turn: (
        Fault(429, QUOTA, {"Retry-After": "1"}) if text == TEXT[B] and turn == 1 else None
    )
    _, err = finish(batch("--samples", "2", "--concurrency", "1"), 1)
    assert "quota is used up" in err and "run the same command again" in err
    assert endpoint.statuses.count(429) == 1 and endpoint.begun == {TEXT[A]: 1, TEXT[B]: 1}
    assert results(tmp_path)[A, 0]["reward"] == 1.0
    assert "reward" not in results(tmp_path)[B, 0] and results(tmp_path)[B, 0]["error"]["code"] == "quota_exhausted"
    told = summary(tmp_path)
    assert (told["completed"], told["failures"], told["not_run"], told["pass_at"]["1"]["tasks"]) == (
        1,
        {"model/quota_exhausted": 1},
        2,
        1,
    )
    assert server.client.get(results(tmp_path)[B, 0]["session_id"]).status == "cancelled"

    endpoint.fault = lambda text, turn: None
    finish(batch("--samples", "2", "--concurrency", "1"), 0)
    assert (summary(tmp_path)["resolved"], summary(tmp_path)["failures"]) == (4, {})


FAULTS = {
    "500": (Fault(500), "endpoint_failed"),
    "503 with Retry-After": (Fault(503, headers={"Retry-After": "1"}), "endpoint_failed"),
    "connection dropped": (Fault(drop=True), "model_unreachable"),
    "no answer in time": (Fault(hang_s=30), "model_unreachable"),
    "not JSON": (Fault(200, b"<html>"), "endpoint_failed"),
    "an error inside a 200": (Fault(200, b'{"error": {"message": "upstream", "code": 502}}'), "endpoint_failed"),
    "400 of another kind": (Fault(400, b'{"error": {"message": "unknown field", "code": "bad"}}'), "endpoint_refused"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_the_endpoint_are_never_scored(batch, endpoint, tmp_path, name):
    fault, code = FAULTS[name]
    endpoint.fault = lambda text, turn: fault if text == TEXT[B] and turn == 1 else None
    options = ("--patience-s", "1.5", "--call-timeout-s", "1")
    out, _ = finish(batch(*options), 1)
    assert results(tmp_path)[A, 0]["reward"] == 1.0
    failed = results(tmp_path)[B, 0]
    assert (failed["status"], failed["error"]["boundary"], failed["error"]["code"]) == (
        "failed",
        "model",
        code,
    ) and "reward" not in failed
    told = summary(tmp_path)
    assert (told["completed"], told["failures"]) == (1, {f"model/{code}": 1})
    assert told["pass_at"]["1"] == {"value": 1.0, "low": None, "high": None, "tasks": 1}
    assert f"model/{code}" in out and B not in (tmp_path / "out" / "predictions-0.jsonl").read_text()

    endpoint.fault = lambda text, turn: None
    finish(batch(*options), 0)
    assert summary(tmp_path)["resolved"] == 2 and len(lines(tmp_path / "out" / "results.jsonl")) == 3


def test_a_fault_that_passes_costs_nothing(batch, endpoint, tmp_path):
    faults = [Fault(500), Fault(drop=True), Fault(529)]
    endpoint.fault = lambda text, turn: faults.pop() if text and faults else None
    finish(batch("--concurrency", "1"), 0)
    assert not faults and summary(tmp_path)["resolved"] == 2


def test_an_endpoint_that_stays_down_stops_the_run(batch, endpoint, tmp_path):
    endpoint.fault = lambda text, turn: Fault(500) if text else None
    _, err = finish(batch("--samples", "4", "--concurrency", "1", "--patience-s", "0.1"), 1)
    assert (
        "failed 3 samples in a row" in err and summary(tmp_path)["not_run"] == 5 and summary(tmp_path)["pass_at"] == {}
    )


def test_the_models_own_failures_are_scored(batch, endpoint, tmp_path):
    """A prompt that outgrew the window, in another server's words than OpenAI's, and an agent that never submits."""
    overflow = b'{"object": "error", "message": "This model\'s maximum context length is 512 tokens.", "code": 400}'
    endpoint.plays[TEXT[B]] = ["text:I give up"]
    endpoint.fault = lambda text, turn: Fault(400, overflow) if text == TEXT[A] and turn == 1 else None
    finish(batch(), 0)
    assert {task: results(tmp_path)[task, 0]["reward"] for task in (A, B)} == {A: 0.0, B: 0.0}
    assert results(tmp_path)[A, 0]["exit_status"] == "ContextWindowExceeded"


def test_time_lost_to_rate_limits_is_not_the_models(batch, endpoint, own_server, tmp_path):  # noqa: F811
    own = own_server(AGENT_SERVER_AGENT_TIMEOUT_S="6", AGENT_SERVER_COMMAND_TIMEOUT_S="5")
    limits = [Fault(429, headers={"Retry-After": "6"})]
    endpoint.fault = lambda text, turn: limits.pop() if text == TEXT[B] and limits else None
    finish(batch("--concurrency", "1", server_url=own.url), 1)
    assert results(tmp_path)[A, 0]["reward"] == 1.0
    assert own.client.get(results(tmp_path)[B, 0]["session_id"]).agent_exit_status == "TimeExceeded"
    assert results(tmp_path)[B, 0]["error"]["code"] == "endpoint_failed" and summary(tmp_path)["completed"] == 1


def test_a_cancelled_session_takes_its_model_call_along(batch, endpoint, server, tmp_path):
    endpoint.fault = lambda text, turn: Fault(hang_s=60) if text == TEXT[B] else None
    process = batch("--concurrency", "2")
    eventually(lambda: len(lines(tmp_path / "out" / "results.jsonl")) == 1, within_s=60, what="the other one is done")
    [hanging] = {line["session_id"] for line in lines(tmp_path / "out" / "open.jsonl")} - {
        line["session_id"] for line in results(tmp_path).values()
    }
    server.client.cancel(hanging)
    finish(process, 1)
    eventually(lambda: endpoint.gone == 1, what="the call to the endpoint was cut")
    assert results(tmp_path)[B, 0]["error"]["boundary"] == "cancel" and summary(tmp_path)["failures"] == {
        "cancel/cancelled": 1
    }


def test_another_batch_in_the_folder_is_refused(batch, endpoint, tmp_path):
    finish(batch(), 0)
    kept = (tmp_path / "out" / "results.jsonl").read_bytes()
    _, err = finish(batch("--temperature", "0.5", "--samples", "2"), 1)
    assert "samples was 1 and is now 2; temperature was null and is now 0.5" in err
    assert (tmp_path / "out" / "results.jsonl").read_bytes() == kept

    endpoint.fault = lambda text, turn: Fault(hang_s=60) if text else None
    (tmp_path / "out" / "results.jsonl").unlink()
    first = batch()
    eventually(lambda: lines(tmp_path / "out" / "open.jsonl"), within_s=60, what="one works there")
    assert "another batch works there" in finish(batch(), 1)[1]
    first.send_signal(signal.SIGINT)
    finish(first, 130)


BAD = {
    "no such task": (
        ["--tasks", f"{A}x"],
        {},
        1,
        f"--tasks {A}x: the server has no such row in train; did you mean {A}?",
    ),
    "no samples": (["--samples", "0"], {}, 1, "--samples 0: Input should be greater than or equal to 1"),
    "no concurrency": (["--concurrency", "0"], {}, 1, "--concurrency 0 must be at least 1"),
    "no key": ([], {"THE_KEY": ""}, 1, "--api-key-env THE_KEY: that variable is not set"),
    "wrong key": ([], {"THE_KEY": "sk-other"}, 1, "the endpoint refuses the API key"),
    "extra is no JSON": (["--extra", "{"], {}, 1, "--extra { must be JSON"),
    "extra takes the messages": (["--extra", '{"messages": []}'], {}, 1, "must be a JSON object without"),
    "base url": (["--base-url", "localhost:8000"], {}, 1, "--base-url localhost:8000 must be http://"),
    "endpoint down": (
        ["--base-url", "http://127.0.0.1:9"],
        {},
        1,
        "the probe of http://127.0.0.1:9 failed: the endpoint did not answer",
    ),
    "server down": (["--server", "http://127.0.0.1:9"], {}, 75, "is the agent server up?"),
    "server is no URL": (["--server", "nowhere"], {}, 1, "--server nowhere: Invalid URL"),
    "relay address": (["--relay-host", "192.0.2.1"], {}, 1, "give an address of this machine"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_any_session(batch, endpoint, tmp_path, name):
    options, environment, code, message = BAD[name]
    endpoint.fault = lambda text, turn: (
        Fault(401, b'{"error": {"message": "wrong key"}}') if endpoint.keys == {"Bearer sk-other"} else None
    )
    _, err = finish(batch(*options, environment=environment), code)
    assert message in err and "Traceback" not in err
    assert not endpoint.begun and not results(tmp_path)


def test_the_agent_servers_token_comes_from_the_environment(batch, own_server, tmp_path):  # noqa: F811
    own = own_server(AGENT_SERVER_TOKEN="server-token")
    _, err = finish(batch(server_url=own.url), 1)
    assert "AGENT_SERVER_TOKEN" in err and "Traceback" not in err
    finish(batch(server_url=own.url, environment={"AGENT_SERVER_TOKEN": "server-token"}), 0)
    assert summary(tmp_path)["resolved"] == 2


def test_a_relay_port_for_servers_that_allow_only_one(batch, own_server, tmp_path):  # noqa: F811
    port = free_port()
    own = own_server(AGENT_SERVER_BASE_URLS=f"http://127.0.0.1:{port}")
    _, err = finish(batch(server_url=own.url), 1)
    assert "AGENT_SERVER_BASE_URLS" in err and "Traceback" not in err
    finish(batch("--relay-port", str(port), server_url=own.url), 0)
    assert summary(tmp_path)["resolved"] == 2


def test_an_endpoint_that_wants_too_much_patience_stops_the_run(batch, endpoint, tmp_path):
    endpoint.fault = lambda text, turn: Fault(429, headers={"Retry-After": "86400"}) if text == TEXT[B] else None
    _, err = finish(batch("--concurrency", "1"), 1)
    assert "it asks to wait 86400 s: run the same command again then" in err
    assert results(tmp_path)[A, 0]["reward"] == 1.0 and summary(tmp_path)["failures"] == {"model/rate_limited": 1}


def test_a_restarted_agent_server_does_not_show(batch, endpoint, own_server, tmp_path):  # noqa: F811
    own = own_server()
    release = threading.Event()
    endpoint.fault = lambda text, turn: None if not text or release.wait(60) else None
    process = batch("--concurrency", "2", server_url=own.url)
    eventually(lambda: len(lines(tmp_path / "out" / "open.jsonl")) == 2, within_s=60, what="both have begun")
    own.process.kill()
    own.process.wait()
    own_server(own.work_dir, AGENT_SERVER_PORT=own.url.rpartition(":")[2])
    release.set()
    finish(process, 0)
    assert summary(tmp_path)["resolved"] == 2 and len(lines(tmp_path / "out" / "results.jsonl")) == 2


def test_an_agent_server_that_stays_away_stops_the_run(batch, endpoint, own_server, tmp_path):  # noqa: F811
    own = own_server()
    endpoint.fault = lambda text, turn: Fault(hang_s=60) if text == TEXT[B] and turn == 1 else None
    process = batch("--concurrency", "1", "--outage-s", "1", server_url=own.url)
    eventually(lambda: endpoint.begun.get(TEXT[B]), within_s=60, what="the second is in the middle")
    os.killpg(
        own.process.pid, signal.SIGKILL
    )  # not the master alone: gunicorn's worker would finish its held answers first
    own.process.wait()
    _, err = finish(process, 75)
    assert "is the agent server up?" in err and summary(tmp_path)["not_run"] == 1

    own_server(own.work_dir, AGENT_SERVER_PORT=own.url.rpartition(":")[2])
    endpoint.fault = lambda text, turn: None
    finish(batch("--concurrency", "1", server_url=own.url), 0)
    assert summary(tmp_path)["resolved"] == 2 and endpoint.begun[TEXT[A]] == 1


def test_a_folder_that_cannot_be_written_stops_the_run(batch, endpoint, tmp_path):
    """What the disk tore or refused is not counted, and runs again."""
    small_files = ("bash", "-c", 'ulimit -f 1; exec "$@"', "-")  # 1024 bytes
    _, err = finish(batch("--concurrency", "1", prefix=small_files), 1)
    torn = (tmp_path / "out" / "trajectories.jsonl").read_bytes()
    assert "cannot be written: [Errno 27]" in err and "Traceback" not in err
    assert set(results(tmp_path)) == {(A, 0)} and len(torn) == 1024 and not torn.endswith(b"\n")
    finish(batch(), 0)
    assert summary(tmp_path)["resolved"] == 2 and len(lines(tmp_path / "out" / "trajectories.jsonl")) == 2


def test_a_broken_line_is_named(batch, tmp_path):
    finish(batch(), 0)
    path = tmp_path / "out" / "results.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\nbroken\n{second}\n")
    _, err = finish(batch(), 1)
    assert "results.jsonl line 2 is no result" in err and "delete that line" in err


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("tls") / "localhost.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run(
        [*command, "-addext", "subjectAltName=DNS:localhost", "-keyout", str(path), "-out", f"{path}.crt"],
        check=True,
        capture_output=True,
    )
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return str(path)


@pytest.fixture
def proxy():
    """A CONNECT proxy; `asked` are the addresses it was asked for."""
    asked = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            asked.append(self.rfile.readline().split()[1].decode())
            while self.rfile.readline().strip():
                pass
            host, _, port = asked[-1].rpartition(":")
            with socket.create_connection((host, int(port))) as there:
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                while ready := select.select([self.connection, there], [], [], 30)[0]:
                    data = ready[0].recv(65536)
                    if not data:
                        return
                    (there if ready[0] is self.connection else self.connection).sendall(data)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads, server.asked = True, asked
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


def test_an_https_endpoint_directly_and_through_a_proxy(batch, certificate, proxy, tmp_path):
    with serving(certificate) as secure:
        secure.plays = {TEXT[task]: [FIX[task]] for task in (A, B)}
        options = ("--base-url", f"{secure.url}/v1")
        _, err = finish(batch(*options), 1)
        assert "certificate verify failed" in err
        trusted = {"SSL_CERT_FILE": f"{certificate}.crt"}
        finish(batch(*options, "--tasks", A, environment=trusted), 0)
        assert not proxy.asked
        finish(
            batch(
                *options,
                "--out",
                str(tmp_path / "other"),
                environment=trusted | {"HTTPS_PROXY": proxy.url, "NO_PROXY": "127.0.0.1"},
            ),
            0,
        )
        assert set(proxy.asked) == {secure.url.removeprefix("https://")} and secure.begun == {TEXT[A]: 2, TEXT[B]: 1}
