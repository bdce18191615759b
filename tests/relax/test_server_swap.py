"""Relax's agent server in the place of ours: conformance, our client process, our Python client."""

import json
import os
import signal
import uuid

from client.api import AgentServerClient
from client.conformance import __main__ as conformance
from client.errors import NotFound
from client.wire import SessionRequest
from tests.agent_server.conftest import eventually
from tests.client.client_process import error_in, run_client, start_client, wait_for_exit
from tests.relax.agent_server import serving_relax
from tests.scripted_model import Hang


def relax_id() -> str:
    """A session id as Relax's trainer makes them."""
    return f"agentic_session_shard_3.session-{uuid.uuid4().hex}"


def test_the_server_keeps_every_rule_but_ours(capsys):
    with serving_relax() as (url, _):
        code = conformance.main([url])
    lines = capsys.readouterr().out.splitlines()
    rules = [line.split()[:3] for line in lines if not line.startswith(" ") and len(line.split()) > 3][:-1]
    others = [rule for rule in rules if rule[1] != "ours" and rule[0] != "holds"]
    assert others == [["inconclusive", "required", "group"]], others  # its answers do not name the row
    assert code == 0 and ["lacks", "ours", "create_again"] in rules and ["lacks", "ours", "wait"] in rules


def test_our_client_process_runs_a_session(tmp_path, model):
    session_id = relax_id()
    with serving_relax(lambda session: 0.25) as (url, server):
        base_url = f"{model.url}/agentic_api/"
        ended = run_client(tmp_path / "io", url, session_id=session_id, base_url=base_url)
    assert ended.code == 0, ended.stderr
    output = json.loads((tmp_path / "io" / "output.json").read_text())
    assert output["reward"] == 0.25 and output["metadata"]["exit_status"] == "Submitted"
    assert output["metadata"]["n_calls"] == len(model.requests[session_id]) == 1
    assert [session.session_id.startswith(f"{session_id}-") for session in server.sessions.values()] == [True]


def test_our_client_process_cancels_its_session(tmp_path, model):
    session_id = relax_id()
    model.scripts[session_id] = [Hang(30.0)]
    with serving_relax() as (url, server):
        client = start_client(tmp_path / "io", url, session_id=session_id, base_url=model.url)
        eventually(lambda: session_id in model.requests, what="the agent calls its model")
        # Before that it does not know the server's id, and the same request again is another session here.
        eventually(lambda: any(each.polls for each in server.sessions.values()), what="the client polls")
        os.killpg(client.pid, signal.SIGTERM)
        assert wait_for_exit(client).code == 143
        eventually(lambda: [each.status for each in server.sessions.values()] == ["cancelled"])


def test_our_client_process_reports_a_failure(tmp_path):
    with serving_relax() as (url, _):
        ended = run_client(tmp_path / "io", url, session_id=relax_id())
    assert ended.code == 1 and not (tmp_path / "io" / "output.json").exists()
    error = error_in(tmp_path / "io")
    assert (error["boundary"], error["code"]) == ("server", "session_failed") and "ConnectionRefused" in error[
        "message"
    ]


def test_our_python_client(model):
    with serving_relax(lambda session: 1.0) as (url, _):
        client = AgentServerClient(url)
        name = relax_id()
        request = SessionRequest(session_id=name, group_id="g", mode="eval", base_url=model.url, api_key=name)
        view = client.wait(client.create(request), timeout_s=30)
        assert (view.status, view.reward, view.error) == ("completed", 1.0, None)
        client.cancel(view.session_id)
        assert client.get(view.session_id) == view
        try:
            client.get("none.such")
        except NotFound as refused:
            assert "none.such" in str(refused)
        else:
            raise AssertionError("an unknown session was found")
