"""Where a session's model calls may go, and whom the server listens to: settings that keep strangers out."""

import pytest
import requests

from agent_server.api import base_urls
from agent_server.config import Settings
from client.errors import ConfigError, InvalidRequest
from tests.agent_server.conftest import DEMO

GOOD = {"session_id": "s", "group_id": "g", "mode": "train", "api_key": "k"}
ALLOWED = "http://good.example/v1, https://good.example:8443, http://[::1]:80"


@pytest.mark.parametrize(
    "url",
    [
        "http://good.example/v1",
        "http://good.example:80/v1/",
        "http://GOOD.example/v1/x/y",
        "https://good.example:8443/anything",
        "http://[::1]/x",
    ],
)
def test_what_belongs(url):
    base_urls.check(url, base_urls.parse_setting(ALLOWED))


@pytest.mark.parametrize(
    "url",
    [
        "http://good.example.evil/v1", "http://good.example@evil/v1", "http://good.example:80@evil/v1", "http://good.example\\@evil/v1",
        "http://evil/http://good.example/v1", "http://evil#http://good.example/v1", "http://evil?good.example/v1", "http://xgood.example/v1",
        "http://good.example./v1", "https://good.example/v1", "http://good.example:81/v1", "http://good.example", "http://good.example/v12",
        "http://good.example/v1/../admin", "http://good.example/v1/%2e%2e/admin", "http://good.example/v1/..%2Fadmin", "http://good.example/v1?x=",
        "http://good.example:8443/", "http://good.example:http/v1", "http://good.example/v1\u2028", "http:///v1", "http://[::2]/x",
    ],
)  # fmt: skip
def test_what_only_looks_alike(url):
    with pytest.raises(InvalidRequest, match="field 'base_url'") as refused:
        base_urls.check(url, base_urls.parse_setting(ALLOWED))
    assert refused.value.field == "base_url"


def test_no_setting_allows_any():
    base_urls.check("http://anywhere", base_urls.parse_setting(" "))


@pytest.fixture
def needed(tmp_path):
    return {
        "R2E_DATA_PATH": str(DEMO / "tasks"),
        "R2E_SIF_DIR": str(DEMO / "images"),
        "AGENT_SERVER_WORK_DIR": str(tmp_path),
    }


@pytest.mark.parametrize(
    "url", ["good.example", "ftp://good.example", "http://user@good.example", "http://good.example:port"]
)
def test_a_wrong_setting_is_refused_before_the_start(needed, url):
    with pytest.raises(ConfigError, match="AGENT_SERVER_BASE_URLS"):
        Settings.from_environment(needed | {"AGENT_SERVER_BASE_URLS": f"http://fine,{url}"})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "node7", "localhost.evil"])
def test_nobody_is_let_in_by_omission(needed, host):
    environment = needed | {"AGENT_SERVER_HOST": host}
    with pytest.raises(
        ConfigError, match=r"set a token, listen on 127\.0\.0\.1, or say AGENT_SERVER_OPEN_TO_ANYONE=yes"
    ):
        Settings.from_environment(environment)
    assert Settings.from_environment(environment | {"AGENT_SERVER_TOKEN": "t"}).host == host
    assert Settings.from_environment(environment | {"AGENT_SERVER_OPEN_TO_ANYONE": "yes"}).host == host
    with pytest.raises(ConfigError, match="AGENT_SERVER_OPEN_TO_ANYONE='true'"):
        Settings.from_environment(environment | {"AGENT_SERVER_OPEN_TO_ANYONE": "true"})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1"])
def test_loopback_needs_no_token(needed, host):
    assert Settings.from_environment(needed | {"AGENT_SERVER_HOST": host}).token == ""


def test_the_server_refuses_a_strangers_base_url(own_server):
    server = own_server(AGENT_SERVER_BASE_URLS="http://127.0.0.1:9/model")
    for url, status in (
        ("http://127.0.0.1:9/model", 200),
        ("http://127.0.0.1:9", 400),
        ("http://127.0.0.1:9.evil/model", 400),
    ):
        answer = requests.post(
            f"{server.url}/sessions", json=GOOD | {"base_url": url, "session_id": url, "group_id": url}, timeout=10
        )
        assert answer.status_code == status, answer.text
        assert status == 200 or answer.json()["error"]["field"] == "base_url"
