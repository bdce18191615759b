"""Evaluations at an https endpoint, directly and through a proxy."""

import select
import socket
import socketserver
import subprocess
import threading
from pathlib import Path

import pytest

from tests.client.evaluation.command import FIX, TASK_A, TASK_B, TEXT, finish
from tests.client.evaluation.fake_endpoint import serving_endpoint


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
    """A CONNECT proxy; `requested` lists the addresses of its requests."""
    requested = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            requested.append(self.rfile.readline().split()[1].decode())
            while self.rfile.readline().strip():
                pass
            host, _, port = requested[-1].rpartition(":")
            with socket.create_connection((host, int(port))) as upstream:
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                while ready := select.select([self.connection, upstream], [], [], 30)[0]:
                    data = ready[0].recv(65536)
                    if not data:
                        return
                    (upstream if ready[0] is self.connection else self.connection).sendall(data)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads, server.requested = True, requested
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


def test_an_https_endpoint_directly_and_through_a_proxy(evaluate, certificate, proxy, tmp_path):
    with serving_endpoint(certificate) as secure:
        secure.scripts = {TEXT[task]: [FIX[task]] for task in (TASK_A, TASK_B)}
        options = ("--base-url", f"{secure.url}/v1")
        _, err = finish(evaluate(*options), 1)
        assert "certificate verify failed" in err
        trusted = {"SSL_CERT_FILE": f"{certificate}.crt"}
        finish(evaluate(*options, "--tasks", TASK_A, environment=trusted), 0)
        assert not proxy.requested
        proxied = trusted | {"HTTPS_PROXY": proxy.url, "NO_PROXY": "127.0.0.1"}
        finish(evaluate(*options, "--out", str(tmp_path / "other"), environment=proxied), 0)
        assert set(proxy.requested) == {secure.url.removeprefix("https://")}
        assert secure.begun == {TEXT[TASK_A]: 2, TEXT[TASK_B]: 1}
