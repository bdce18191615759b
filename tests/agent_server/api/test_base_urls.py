"""A session's base_url is allowed by scheme, host, port and path segments; look-alikes are refused."""

import pytest
import requests

from agent_server.api import base_urls
from agent_server.setting_types import parse_base_urls
from client.errors import InvalidRequest

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
def test_an_allowed_url_passes(url):
    base_urls.check(url, parse_base_urls(ALLOWED))


@pytest.mark.parametrize(
    "url",
    [
        "http://good.example.evil/v1",
        "http://good.example@evil/v1",
        "http://good.example:80@evil/v1",
        "http://good.example\\@evil/v1",
        "http://evil/http://good.example/v1",
        "http://evil#http://good.example/v1",
        "http://evil?good.example/v1",
        "http://xgood.example/v1",
        "http://good.example./v1",
        "https://good.example/v1",
        "http://good.example:81/v1",
        "http://good.example",
        "http://good.example/v12",
        "http://good.example/v1/../admin",
        "http://good.example/v1/%2e%2e/admin",
        "http://good.example/v1/..%2Fadmin",
        "http://good.example/v1?x=",
        "http://good.example:8443/",
        "http://good.example:http/v1",
        "http://good.example/v1\u2028",
        "http:///v1",
        "http://[::2]/x",
    ],
)
def test_a_look_alike_is_refused(url):
    with pytest.raises(InvalidRequest, match="field 'base_url'") as refused:
        base_urls.check(url, parse_base_urls(ALLOWED))
    assert refused.value.field == "base_url"


def test_an_empty_setting_allows_any_url():
    base_urls.check("http://anywhere", parse_base_urls(" "))


def test_the_server_refuses_a_foreign_base_url(own_server):
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
