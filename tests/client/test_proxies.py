"""The rule of proxies: direct by default, by the variables with AGENT_SERVER_PROXIES=environment; all of the client
package's ways to an agent server keep it."""

import base64
import ssl
import subprocess

import pytest

from client.api import AgentServerClient
from client.errors import ConfigError, ServerUnreachable
from client.http_server import JsonHandler, serving
from client.http_session import http_session
from client.proxies import authorization, environment_of_calls, exempt, proxy_for
from client.wire import SessionRequest
from tests.client.client_process import run_client
from tests.client.scripted_server import COMPLETED, CREATED, scripted_server
from tests.recording_proxy import recording_proxy

ALLOWED = {"AGENT_SERVER_PROXIES": "environment"}
PROXY, OTHER = "http://proxy.invalid:3128", "http://other.invalid:3129"
SERVER = "http://agents.invalid:8600"
REQUEST = SessionRequest(session_id="s", group_id="s", mode="train", base_url="http://127.0.0.1:9", api_key="k")


@pytest.fixture
def proxy():
    with recording_proxy() as running:
        yield running


@pytest.mark.parametrize("rule", [{}, {"AGENT_SERVER_PROXIES": ""}, {"AGENT_SERVER_PROXIES": "direct"}])
def test_calls_are_direct_by_default(rule):
    variables = {name: PROXY for name in ("HTTP_PROXY", "https_proxy", "ALL_PROXY")} | rule
    assert proxy_for("http://model.invalid:8000/v1", variables) == proxy_for("https://model.invalid", variables) == ""


@pytest.mark.parametrize(
    ("variables", "url", "expected"),
    [
        ({"HTTP_PROXY": PROXY}, "http://model.invalid", PROXY),
        ({"http_proxy": PROXY, "HTTP_PROXY": OTHER}, "http://model.invalid", PROXY),
        ({"HTTP_PROXY": PROXY}, "https://model.invalid", ""),
        ({"HTTPS_PROXY": PROXY, "ALL_PROXY": OTHER}, "https://model.invalid", PROXY),
        ({"ALL_PROXY": OTHER}, "http://model.invalid", OTHER),
        ({"HTTP_PROXY": "proxy.invalid:3128"}, "http://model.invalid", PROXY),
        ({}, "http://model.invalid", ""),
    ],
)
def test_the_variables_are_followed_where_allowed(variables, url, expected):
    assert proxy_for(url, variables | ALLOWED) == expected


@pytest.mark.parametrize(
    ("exceptions", "host", "exempted"),
    [
        ("model.invalid", "model.invalid", True),
        ("other, .invalid", "model.invalid", True),
        ("*.invalid", "model.invalid", True),
        ("invalid", "model.invalid", True),
        ("del.invalid", "model.invalid", False),
        ("MODEL.invalid", "model.INVALID", True),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("[fd00::]/8", "[fd00::7]", False),
        ("fd00::/8", "[fd00::7]", True),
        ("model.invalid:8000", "model.invalid:8000", True),
        ("model.invalid:8001", "model.invalid:8000", False),
        ("*", "model.invalid", True),
        (" , ,.", "model.invalid", False),
        ("", "127.0.0.1", True),
        ("", "127.9.9.9:1", True),
        ("", "[::1]", True),
        ("", "localhost", True),
    ],
)
def test_exceptions(exceptions, host, exempted):
    found = proxy_for(f"http://{host}/v1", {"HTTP_PROXY": PROXY, "NO_PROXY": exceptions} | ALLOWED)
    assert found == ("" if exempted else PROXY)


@pytest.mark.parametrize(
    "proxy", ["socks5://u:pw@proxy.invalid:1080", "https://proxy.invalid:1", "proxy.invalid", "a:b"]
)
def test_a_proxy_that_cannot_be_used_is_named(proxy):
    with pytest.raises(ValueError, match="HTTP_PROXY=.* must be http://HOST:PORT") as refused:
        proxy_for("http://model.invalid", {"HTTP_PROXY": proxy} | ALLOWED)
    assert "pw" not in str(refused.value)


def test_a_wrong_rule_is_refused(monkeypatch):
    monkeypatch.setenv("AGENT_SERVER_PROXIES", "yes")
    with pytest.raises(ConfigError, match="AGENT_SERVER_PROXIES=yes must be direct or environment"):
        AgentServerClient(SERVER)


def test_a_child_process_gets_the_rule_by_its_environment():
    variables = {"HTTP_PROXY": PROXY, "all_proxy": OTHER, "No_Proxy": "x", "NO_PROXY": "10.0.0.0/8", "HOME": "/root"}
    assert environment_of_calls(variables, "direct") == {"HOME": "/root", "AGENT_SERVER_PROXIES": "direct"}
    kept = environment_of_calls(variables, "environment")
    exceptions = "10.0.0.0/8,localhost,127.0.0.1,::1"
    both_cases = {"http_proxy": PROXY, "all_proxy": OTHER, "no_proxy": exceptions}
    assert kept == {"HOME": "/root"} | ALLOWED | both_cases | {name.upper(): both_cases[name] for name in both_cases}
    # Libraries that know no ranges learn the host.
    assert exempt("http://10.1.1.1:80/v1", kept)["NO_PROXY"] == f"{exceptions},10.1.1.1"
    assert exempt("http://11.1.1.1:80/v1", kept) == exempt("http://10.1.1.1/v1", {}) == {}


def test_a_login_is_sent_decoded():
    sent = authorization("http://us%40er:p%3Aw@proxy.invalid:1")["Proxy-Authorization"]
    assert base64.b64decode(sent.removeprefix("Basic ")) == b"us@er:p:w"


def test_the_client_process_goes_through_a_proxy_only_where_allowed(proxy, tmp_path):
    with scripted_server([CREATED, COMPLETED], calls := []) as url:
        proxy.leads_to = url.removeprefix("http://")
        variables = proxy.variables(login="me:word")
        refused = run_client(tmp_path / "direct", SERVER, AGENT_CLIENT_OUTAGE_S="1", **variables)
        assert refused.code == 75 and not proxy.requests and not calls
        ended = run_client(tmp_path / "allowed", f"{SERVER}/below", **variables, **ALLOWED)
        assert ended.code == 0, ended.stderr
        assert calls == ["POST /below/sessions", "GET /below/sessions/x?wait=3600"]
        assert proxy.requests == [("POST", "agents.invalid"), ("GET", "agents.invalid")]
        assert proxy.logins == {f"Basic {base64.b64encode(b'me:word').decode()}"}


def test_the_client_process_opens_a_tunnel_for_https(proxy, tmp_path):
    certificate, folder = tmp_path / "server.pem", tmp_path / "session"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=agents.invalid"]
    command += [
        "-addext",
        "subjectAltName=DNS:agents.invalid",
        "-keyout",
        f"{certificate}",
        "-out",
        f"{certificate}.crt",
    ]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(f"{certificate}.crt", certificate)
    answers = [CREATED[1], COMPLETED[1]]

    class Handler(JsonHandler):
        def do_POST(self):
            self.send_json(200, answers.pop(0))

        do_GET = do_POST

        def setup(self):
            self.request = context.wrap_socket(self.request, server_side=True)
            super().setup()

    with serving(Handler, "127.0.0.1", 0) as url:
        proxy.leads_to = url.removeprefix("http://")
        variables = proxy.variables() | ALLOWED | {"SSL_CERT_FILE": f"{certificate}.crt"}
        ended = run_client(folder, "https://agents.invalid", **variables)
    assert ended.code == 0, ended.stderr
    assert proxy.requests == [("CONNECT", "agents.invalid")] * 2


def test_the_client_process_names_a_wrong_proxy(tmp_path):
    ended = run_client(tmp_path, SERVER, HTTP_PROXY="socks5://proxy.invalid:1080", **ALLOWED)
    assert ended.code == 1 and "HTTP_PROXY=socks5://proxy.invalid:1080 must be http://HOST:PORT" in ended.stderr


def test_the_python_client_goes_through_a_proxy_only_where_allowed(proxy, monkeypatch):
    for name, value in proxy.variables().items():
        monkeypatch.setenv(name, value)
    with scripted_server([CREATED, COMPLETED], calls := []) as url:
        proxy.leads_to = url.removeprefix("http://")
        with pytest.raises(ServerUnreachable):
            AgentServerClient(SERVER, outage_s=0.0).create(REQUEST)
        assert not proxy.requests
        monkeypatch.setenv("AGENT_SERVER_PROXIES", "environment")
        assert AgentServerClient(SERVER, outage_s=0.0).create(REQUEST) == "x"
        assert (proxy.requests, calls) == ([("POST", "agents.invalid")], ["POST /sessions"])
        assert AgentServerClient(url, outage_s=0.0).get("x").reward == 0.5
        assert len(proxy.requests) == 1, "loopback is direct"


def test_a_session_ignores_the_netrc_and_takes_the_bundle_of_certificates(tmp_path, monkeypatch):
    """A machine's ~/.netrc would replace the bearer token."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login someone password else\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    sent = []

    class Handler(JsonHandler):
        def do_GET(self):
            sent.append(self.headers["Authorization"])
            self.send_json(200, {"train": [], "eval": []})

    with serving(Handler, "127.0.0.1", 0) as url:
        AgentServerClient(url, token="the-token").tasks()
    assert sent == ["Bearer the-token"]
    assert http_session(SERVER, {"REQUESTS_CA_BUNDLE": "/etc/bundle.pem"}).verify == "/etc/bundle.pem"
