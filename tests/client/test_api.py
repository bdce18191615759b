"""AgentServerClient at servers that are slow, busy, away, or without long polls."""

import pytest

from client.api import AgentServerClient
from client.errors import NotFound, ServerBusy, ServerError, ServerUnreachable
from client.wire import SessionRequest
from tests.agent_server.conftest import free_port
from tests.client.scripted_server import COMPLETED, CREATED, CUT, RUNNING, held, scripted_server

REQUEST = SessionRequest(
    session_id="s", group_id="g", mode="train", base_url="http://127.0.0.1:9", api_key="k", run_id="run 7"
)


def test_one_long_poll_is_the_whole_wait():
    calls: list[str] = []
    bodies: list[dict] = []
    with scripted_server([CREATED, held(COMPLETED, 1.5)], calls, bodies=bodies) as url:
        client = AgentServerClient(url)
        assert client.wait(client.create(REQUEST), timeout_s=7200).reward == 0.5
    assert calls == ["POST /sessions", "GET /sessions/x?wait=3600"] and bodies[0]["run_id"] == "run 7"


def test_a_server_without_long_polls_is_polled_calmly():
    calls: list[str] = []
    with scripted_server([RUNNING, RUNNING, COMPLETED], calls) as url:
        assert AgentServerClient(url).wait("x", timeout_s=60).reward == 0.5
    with scripted_server([RUNNING], calls := []) as url, pytest.raises(TimeoutError, match="cancel it or wait longer"):
        AgentServerClient(url).wait("x", timeout_s=1.5)
    assert len(calls) <= 3


def test_a_busy_server_is_no_outage_yet_has_a_limit():
    with scripted_server([(429, {}, {"Retry-After": "2"}), CUT, (503, {}, {"Retry-After": "x"}), CREATED], []) as url:
        assert AgentServerClient(url, outage_s=10).create(REQUEST) == "x"
    with scripted_server([(429, {}, {"Retry-After": "2"})], []) as url, pytest.raises(ServerBusy, match="busy for 1 s"):
        AgentServerClient(url, outage_s=0, busy_s=1).create(REQUEST)


def test_an_outage_ends():
    with pytest.raises(ServerUnreachable, match="is the agent server up"):
        AgentServerClient(f"http://127.0.0.1:{free_port()}", outage_s=1).create(REQUEST)


def test_a_text_as_error_is_read_as_one(tmp_path):
    """Relax's server gives a text, an empty one where nothing failed."""
    view = RUNNING[1] | {"session_id": "a.b/c", "error": ""}
    failed, calls = view | {"status": "failed", "exit_code": 1, "error": "no image"}, []
    refusal = (404, {"error": "'a.b/c'"}, {})
    with scripted_server([(200, view, {}), (200, failed, {}), refusal], calls) as url:
        client = AgentServerClient(url)
        assert client.get("a.b/c").error is None
        error = {"boundary": "server", "code": "session_failed", "message": "no image"}
        assert client.get("a.b/c", wait_s=10).error == error
        with pytest.raises(NotFound, match="^'a.b/c'$"):
            client.cancel("a.b/c")
    assert calls == ["GET /sessions/a.b%2Fc", "GET /sessions/a.b%2Fc?wait=10", "POST /sessions/a.b%2Fc/cancel"]


def test_responses_that_are_not_an_agent_servers():
    with scripted_server([(200, "<html>", {}), (404, {"error": {"message": "gone"}}, {})], []) as url:
        with pytest.raises(ServerError, match="is this an agent server"):
            AgentServerClient(url).get("x")
        with pytest.raises(NotFound, match="gone"):
            AgentServerClient(url).get("x")
