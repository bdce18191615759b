"""Evaluations that are killed, interrupted or cut off, and resumed; folders that cannot be used."""

import json
import os
import signal
import threading

import pytest

from tests.agent_server.conftest import eventually
from tests.client.evaluation.command import TASK_A, TASK_B, TEXT, finish, read_lines, read_results, read_summary
from tests.client.evaluation.fake_endpoint import Fault


def test_killed_and_resumed(evaluate, endpoint, server, tmp_path):
    """Recorded samples do not run again, whatever lines the kill tore. The session left behind is cancelled."""
    endpoint.fault = lambda text, turn: Fault(hang_s=60) if text == TEXT[TASK_B] and turn == 1 else None
    process = evaluate("--samples", "2", "--concurrency", "1")
    out = tmp_path / "out"
    eventually(
        lambda: len(read_lines(out / "results.jsonl")) == 1 and endpoint.begun.get(TEXT[TASK_B]),
        within_s=60,
        what="one sample recorded, one running",
    )
    process.kill()
    process.communicate()
    recorded_id = read_lines(out / "results.jsonl")[0]["session_id"]
    [left] = {line["session_id"] for line in read_lines(out / "open.jsonl")} - {recorded_id}
    recorded = (out / "results.jsonl").read_text()
    unrecorded = {"messages": [], "task_id": TASK_B, "sample": 0, "session_id": left, "reward": 1.0}
    with (out / "results.jsonl").open("a") as file:
        file.write('{"task_id": "torn')
    with (out / "trajectories.jsonl").open("a") as file:
        file.write(json.dumps(unrecorded) + "\n")
    (out / ".summary.json.1.partial").write_text("{")

    endpoint.fault = lambda text, turn: None
    finish(evaluate("--samples", "2", "--concurrency", "1"), 0)
    assert server.client.get(left).status == "cancelled"
    assert (out / "results.jsonl").read_text().startswith(recorded) and not list(out.glob(".*"))
    results = read_results(tmp_path).values()
    assert len(read_lines(out / "results.jsonl")) == len(results) == read_summary(tmp_path)["resolved"] == 4
    assert endpoint.begun == {TEXT[TASK_A]: 2, TEXT[TASK_B]: 3}, "only the sample that was cut began twice"
    trajectories = read_lines(out / "trajectories.jsonl")
    assert sorted(line["session_id"] for line in trajectories) == sorted(line["session_id"] for line in results)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_resumed(evaluate, endpoint, server, tmp_path, number):
    endpoint.fault = lambda text, turn: Fault(hang_s=60) if text and turn == 1 else None
    process = evaluate("--concurrency", "2")
    eventually(lambda: sum(endpoint.begun.values()) == 2, within_s=60, what="two samples running")
    open_sessions = [line["session_id"] for line in read_lines(tmp_path / "out" / "open.jsonl")]
    process.send_signal(number)
    _, err = finish(process, 130)
    assert "the same command resumes" in err and read_summary(tmp_path)["not_run"] == 2
    assert [server.client.get(session_id).status for session_id in open_sessions] == ["cancelled"] * 2
    endpoint.fault = lambda text, turn: None
    finish(evaluate("--concurrency", "2"), 0)
    assert read_summary(tmp_path)["resolved"] == 2


def test_a_cancelled_session_ends_its_model_call(evaluate, endpoint, server, tmp_path):
    endpoint.fault = lambda text, turn: Fault(hang_s=60) if text == TEXT[TASK_B] else None
    process = evaluate("--concurrency", "2")
    out = tmp_path / "out"
    eventually(lambda: len(read_lines(out / "results.jsonl")) == 1, within_s=60, what="the other sample recorded")
    recorded = {line["session_id"] for line in read_results(tmp_path).values()}
    [hanging] = {line["session_id"] for line in read_lines(out / "open.jsonl")} - recorded
    server.client.cancel(hanging)
    finish(process, 1)
    eventually(lambda: endpoint.gone == 1, what="the call to the endpoint was cut")
    assert read_results(tmp_path)[TASK_B, 0]["error"]["boundary"] == "cancel"
    assert read_summary(tmp_path)["failures"] == {"cancel/cancelled": 1}


def test_a_folder_of_another_evaluation_is_refused(evaluate, endpoint, tmp_path):
    finish(evaluate(), 0)
    kept = (tmp_path / "out" / "results.jsonl").read_bytes()
    _, err = finish(evaluate("--temperature", "0.5", "--samples", "2"), 1)
    assert "samples was 1 and is now 2; temperature was null and is now 0.5" in err
    assert (tmp_path / "out" / "results.jsonl").read_bytes() == kept

    endpoint.fault = lambda text, turn: Fault(hang_s=60) if text else None
    (tmp_path / "out" / "results.jsonl").unlink()
    first = evaluate()
    eventually(
        lambda: read_lines(tmp_path / "out" / "open.jsonl"), within_s=60, what="an evaluation running in the folder"
    )
    assert "another evaluation is running there" in finish(evaluate(), 1)[1]
    first.send_signal(signal.SIGINT)
    finish(first, 130)


def test_a_restart_of_the_agent_server_is_survived(evaluate, endpoint, own_server, tmp_path):
    own = own_server()
    release = threading.Event()
    endpoint.fault = lambda text, turn: None if not text or release.wait(60) else None
    process = evaluate("--concurrency", "2", server_url=own.url)
    eventually(lambda: len(read_lines(tmp_path / "out" / "open.jsonl")) == 2, within_s=60, what="both samples running")
    own.process.kill()
    own.process.wait()
    own_server(own.work_dir, AGENT_SERVER_PORT=own.url.rpartition(":")[2])
    release.set()
    finish(process, 0)
    assert read_summary(tmp_path)["resolved"] == 2 and len(read_lines(tmp_path / "out" / "results.jsonl")) == 2


def test_a_long_outage_of_the_agent_server_stops_the_run(evaluate, endpoint, own_server, tmp_path):
    own = own_server()
    endpoint.fault = lambda text, turn: Fault(hang_s=60) if text == TEXT[TASK_B] and turn == 1 else None
    process = evaluate("--concurrency", "1", "--outage-s", "1", server_url=own.url)
    eventually(lambda: endpoint.begun.get(TEXT[TASK_B]), within_s=60, what="the second sample running")
    os.killpg(own.process.pid, signal.SIGKILL)  # the master alone would leave a worker that finishes its long polls
    own.process.wait()
    _, err = finish(process, 75)
    assert "is the agent server up?" in err and read_summary(tmp_path)["not_run"] == 1

    own_server(own.work_dir, AGENT_SERVER_PORT=own.url.rpartition(":")[2])
    endpoint.fault = lambda text, turn: None
    finish(evaluate("--concurrency", "1", server_url=own.url), 0)
    assert read_summary(tmp_path)["resolved"] == 2 and endpoint.begun[TEXT[TASK_A]] == 1


def test_a_folder_that_cannot_be_written_stops_the_run(evaluate, endpoint, tmp_path):
    """Samples whose lines are partial or missing do not count, and run again."""
    small_files = ("bash", "-c", 'ulimit -f 1; exec "$@"', "-")  # 1024 bytes
    _, err = finish(evaluate("--concurrency", "1", prefix=small_files), 1)
    torn = (tmp_path / "out" / "trajectories.jsonl").read_bytes()
    assert "cannot be written: [Errno 27]" in err and "Traceback" not in err
    assert set(read_results(tmp_path)) == {(TASK_A, 0)} and len(torn) == 1024 and not torn.endswith(b"\n")
    finish(evaluate(), 0)
    assert read_summary(tmp_path)["resolved"] == 2 and len(read_lines(tmp_path / "out" / "trajectories.jsonl")) == 2


def test_a_broken_line_is_named(evaluate, tmp_path):
    finish(evaluate(), 0)
    path = tmp_path / "out" / "results.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\nbroken\n{second}\n")
    _, err = finish(evaluate(), 1)
    assert "results.jsonl line 2 is no result" in err and "delete that line" in err
