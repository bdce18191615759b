"""Evaluations at an https endpoint, and at endpoints behind a proxy."""

import subprocess
from pathlib import Path

import pytest

from tests.client.evaluation.command import FIX, TASK_A, TASK_B, TEXT, finish
from tests.client.evaluation.fake_endpoint import serving_endpoint
from tests.recording_proxy import recording_proxy


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("tls") / "localhost.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run(
        [
            *command,
            "-addext",
            "subjectAltName=DNS:localhost,DNS:endpoint.invalid",
            "-keyout",
            str(path),
            "-out",
            f"{path}.crt",
        ],
        check=True,
        capture_output=True,
    )
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return str(path)


@pytest.fixture
def proxy():
    with recording_proxy() as running:
        yield running


def test_an_https_endpoint_directly_and_through_a_proxy(evaluate, certificate, proxy, tmp_path):
    with serving_endpoint(certificate) as secure:
        secure.scripts = {TEXT[task]: [FIX[task]] for task in (TASK_A, TASK_B)}
        options = ("--base-url", f"{secure.url}/v1")
        _, err = finish(evaluate(*options), 1)
        assert "certificate verify failed" in err
        trusted = {"SSL_CERT_FILE": f"{certificate}.crt"} | proxy.variables()
        finish(evaluate(*options, "--tasks", TASK_A, environment=trusted), 0)
        assert not proxy.requests
        proxy.leads_to = secure.url.removeprefix("https://")
        behind = ("--base-url", "https://endpoint.invalid/v1", "--out", str(tmp_path / "other"))
        _, err = finish(evaluate(*behind, environment=trusted), 1)
        assert "calls are direct, to use HTTP_PROXY set AGENT_SERVER_PROXIES=environment" in err
        assert not proxy.requests
        finish(evaluate(*behind, environment=trusted | {"AGENT_SERVER_PROXIES": "environment"}), 0)
        assert set(proxy.requests) == {("CONNECT", "endpoint.invalid")}
        assert secure.begun == {TEXT[TASK_A]: 2, TEXT[TASK_B]: 1}


def test_an_http_endpoint_through_a_proxy(evaluate, endpoint, proxy):
    proxy.leads_to = endpoint.url.removeprefix("http://")
    allowed = proxy.variables(login="me:word") | {"AGENT_SERVER_PROXIES": "environment"}
    finish(evaluate("--base-url", "http://endpoint.invalid", "--tasks", TASK_A, environment=allowed), 0)
    assert set(proxy.requests) == {("POST", "endpoint.invalid")} and len(proxy.logins) == 1
    assert endpoint.begun == {TEXT[TASK_A]: 1}
