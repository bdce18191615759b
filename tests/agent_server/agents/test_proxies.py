"""Model calls of both kinds of agents where HTTP_PROXY and its like are set: direct, or by the proxy if allowed."""

import pytest

from tests.agent_server.agents.test_agents import PROGRAM
from tests.agent_server.api.test_bad_input import start
from tests.agent_server.conftest import FIX
from tests.recording_proxy import recording_proxy

AGENTS = pytest.mark.parametrize("agent", ["mini", f"sandbox: {PROGRAM}"], ids=["mini", "sandbox"])
BEHIND = "http://model.invalid:8000/below"


@pytest.fixture
def proxy(model):
    with recording_proxy() as running:
        running.leads_to = model.url.removeprefix("http://")
        yield running


@AGENTS
def test_model_calls_are_direct_by_default(own_server, model, proxy, agent):
    server = own_server(AGENT_SERVER_AGENT=agent, **proxy.variables())
    behind = server.create(model, [FIX], base_url=BEHIND)
    view = server.run(model, [FIX])
    assert (view.status, view.reward) == ("completed", 1.0)
    view = server.client.wait(behind, timeout_s=90)
    assert (view.status, view.error["code"]) == ("failed", "model_unreachable")
    assert not proxy.requests


@AGENTS
def test_model_calls_go_through_a_proxy_where_allowed(own_server, model, proxy, agent):
    exceptions = {"NO_PROXY": "0.0.0.0/8", "no_proxy": ""}
    variables = proxy.variables() | exceptions | {"AGENT_SERVER_PROXIES": "environment"}
    server = own_server(AGENT_SERVER_AGENT=agent, **variables)
    view = server.run(model, [FIX], base_url=BEHIND.removesuffix("/below"))
    assert (view.status, view.reward) == ("completed", 1.0)
    assert set(proxy.requests) == {("POST", "model.invalid")}
    n_requests = len(proxy.requests)
    for base_url in (model.url, model.url.replace("127.0.0.1", "0.0.0.0")):  # loopback, and a range in NO_PROXY
        view = server.run(model, [FIX], base_url=base_url)
        assert (view.status, view.reward, len(proxy.requests)) == ("completed", 1.0, n_requests), base_url


def test_the_server_does_not_start_with_a_proxy_that_calls_cannot_use(tmp_path):
    wrong = {"AGENT_SERVER_PROXIES": "environment", "ALL_PROXY": "socks5://user:word@proxy.invalid:1080"}
    refused = start(tmp_path, **wrong)
    assert refused.returncode == 2 and "ALL_PROXY=proxy.invalid:1080 must be http://HOST:PORT" in refused.stderr
    assert "word" not in refused.stderr
