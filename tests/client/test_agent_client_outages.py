"""The client process at servers that restart, are busy, are away, or hold no long polls."""

import json
import shutil
import time
from types import SimpleNamespace

from client import agent_client
from tests.agent_server.conftest import free_port
from tests.client.client_process import CLIENT, client_environment, run_client, start_client, wait_for_exit
from tests.client.scripted_server import COMPLETED, CREATED, CUT, RUNNING, held, scripted_server


def test_a_server_without_long_polls_is_polled_calmly(tmp_path):
    calls: list[str] = []
    with scripted_server([CREATED, (400, {"error": "unknown query"}, {}), RUNNING, RUNNING, COMPLETED], calls) as url:
        started = time.monotonic()
        ended = run_client(tmp_path / "io", url)
    assert ended.code == 0 and calls == ["POST /sessions", "GET /sessions/x?wait=3600"] + ["GET /sessions/x"] * 3
    assert time.monotonic() - started > 2.9  # pauses of one and two seconds, no busy loop
    assert json.loads((tmp_path / "io" / "output.json").read_text())["reward"] == 0.5


def test_a_server_that_holds_for_less_is_polled_again_at_once(tmp_path):
    calls: list[str] = []
    with scripted_server([CREATED, held(RUNNING, 1.2), held(RUNNING, 1.2), COMPLETED], calls) as url:
        ended = run_client(tmp_path / "io", url)
    assert ended.code == 0 and len(calls) == 4


def test_a_restart_in_the_middle_of_a_long_poll_is_survived(tmp_path):
    calls: list[str] = []
    truncated = (200, '{"session_id": "x", "sta', {"Transfer-Encoding": "chunked"})
    with scripted_server([CREATED, held(CUT, 1.0), CUT, truncated, COMPLETED], calls) as url:
        ended = run_client(tmp_path / "io", url)
    assert ended.code == 0 and calls == ["POST /sessions"] + ["GET /sessions/x?wait=3600"] * 4, ended.stderr


def test_a_proxy_that_cuts_long_polls_gets_shorter_ones(tmp_path):
    """The first cut may be a restart; after the second the client waits for three quarters of the time it was held."""
    for name in ("agent_client.sh", "agent_client.py"):
        shutil.copy(CLIENT.parent / name, tmp_path / name)
    original = "MAX_WAIT_S, MIN_WAIT_S = 3600, 30 "
    impatient = (tmp_path / "agent_client.py").read_text().replace(original, original.replace("30 ", "2 "))
    (tmp_path / "agent_client.py").write_text(impatient)
    calls: list[str] = []
    responses = [CREATED, held(CUT, 4.2), RUNNING, held((504, "", {}), 4.2), RUNNING, COMPLETED]
    with scripted_server(responses, calls) as url:
        ended = run_client(tmp_path / "io", url, program=tmp_path / "agent_client.sh")
    assert ended.code == 0, ended.stderr
    assert [call.rpartition("=")[2] for call in calls[1:]] == ["3600", "3", "3600", "3", "3"]


def test_an_outage_shorter_than_the_limit_is_survived(tmp_path):
    """The port refuses connections at first; then a server that comes up listens on it."""
    calls: list[str] = []
    port = free_port()
    client = start_client(tmp_path / "io", f"http://127.0.0.1:{port}", AGENT_CLIENT_OUTAGE_S="30")
    time.sleep(1.5)  # the outage
    with scripted_server([(503, "down", {}), CREATED, (500, "oops", {}), COMPLETED], calls, port):
        ended = wait_for_exit(client)
    assert ended.code == 0, ended.stderr
    assert calls.count("POST /sessions") == 2 and len(calls) == 4


def test_a_longer_outage_is_not(tmp_path):
    started = time.monotonic()
    ended = run_client(tmp_path / "io", f"http://127.0.0.1:{free_port()}", AGENT_CLIENT_OUTAGE_S="2")
    assert ended.code == 75 and "is the agent server up?" in ended.stderr and time.monotonic() - started < 10
    assert not (tmp_path / "io" / "output.json").exists()


def test_too_many_requests_is_waited_out(tmp_path):
    calls: list[str] = []
    started = time.monotonic()
    busy = [(429, {}, {"Retry-After": value}) for value in ("2", "soon", "0")]
    with scripted_server([busy[0], busy[1], CREATED, busy[2], COMPLETED], calls) as url:
        ended = run_client(tmp_path / "io", url, AGENT_CLIENT_OUTAGE_S="1")
    assert ended.code == 0 and calls[:3] == ["POST /sessions"] * 3 and len(calls) == 5
    assert time.monotonic() - started > 4.9  # never a busy loop, whatever the header is


def test_retry_after_does_not_extend_an_outage(tmp_path):
    started = time.monotonic()
    with scripted_server([(503, {}, {"Retry-After": "99999999"})], []) as url:
        ended = run_client(tmp_path / "io", url, AGENT_CLIENT_OUTAGE_S="2")
    assert ended.code == 75 and time.monotonic() - started < 10


def test_pauses_of_a_busy_server_do_not_slow_down_the_polling(tmp_path, monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr(agent_client, "on_signal", lambda handler: None)
    monkeypatch.setattr(agent_client, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pauses.append))
    busy = (429, {}, {})
    responses = [busy, busy, busy, CREATED, (400, {}, {}), RUNNING, busy, busy, RUNNING, COMPLETED]
    with scripted_server(responses, []) as url:
        agent_client.Client(client_environment(tmp_path, url)).run()
    assert pauses == [1, 2, 3] + [1] + [1, 2] + [2]  # busy, a poll, busy, a poll
