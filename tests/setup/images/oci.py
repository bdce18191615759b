"""A real registry on loopback with generated images, and a proxy in front of it that counts, delays and refuses
requests.

Each image has a base layer of BASE_BYTES incompressible bytes and this machine's bash, and a small layer of its own.
"""

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BASE_BYTES, TOP_BYTES = 6_000_000, 50_000
USER, PASSWORD = "reader", "open sesame"
HTPASSWD = f"{USER}:$2b$05$Zp2RPeRdtFELwk3czG8WaugIQQEQtE1rlTHKu8uQjsnasWYcId1OS"  # bcrypt of PASSWORD
CHUNK = 65536


def make_images(folder: Path, tops: list[str]) -> Path:
    """Make an OCI layout with the image `base` and an image for each tag in `tops`: the base's layer and one of its
    own."""
    root, layout = folder / "root", folder / "layout"
    for name in ("bin", "dev", "etc", "proc", "sys", "tmp", "var/tmp", "root", "testbed"):
        (root / name).mkdir(parents=True)
    for program in ("busybox", "bash"):
        real = shutil.which(program)
        shutil.copy(real, root / "bin" / program)
        libraries = subprocess.run(["ldd", real], capture_output=True, text=True).stdout
        for library in re.findall(r"/[^ )]+", libraries):
            (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, root / library[1:])
    for applet in ("sh", "env", "true"):
        (root / "bin" / applet).symlink_to("busybox")
    (root / "base").write_bytes(os.urandom(BASE_BYTES))
    _run("umoci", "init", "--layout", str(layout))
    _run("umoci", "new", "--image", f"{layout}:base")
    _run("umoci", "insert", "--image", f"{layout}:base", str(root), "/")
    for tag in tops:
        (top := folder / f"top-{tag}").write_bytes(os.urandom(TOP_BYTES))
        _run("umoci", "insert", "--image", f"{layout}:base", "--tag", tag, str(top), "/top")
    return layout


def base_layer_bytes(layout: Path) -> int:
    """The compressed size, as transferred."""
    return max(blob.stat().st_size for blob in (layout / "blobs/sha256").iterdir())


def digest_of(layout: Path, tag: str) -> str:
    manifests = json.loads((layout / "index.json").read_text())["manifests"]
    return next(
        entry["digest"] for entry in manifests if entry["annotations"]["org.opencontainers.image.ref.name"] == tag
    )


class Registry:
    """Debian's docker-registry. `address` is HOST:PORT."""

    def __init__(self, folder: Path, *, password: bool = False):
        folder.mkdir()
        self._folder, self.address = folder, f"127.0.0.1:{_free_port()}"
        auth = ""
        if password:
            (folder / "htpasswd").write_text(HTPASSWD + "\n")
            auth = f"auth: {{htpasswd: {{realm: ours, path: {folder}/htpasswd}}}}\n"
        (folder / "config.yml").write_text(
            "version: 0.1\n"
            "log: {accesslog: {disabled: true}, level: warn}\n"
            f"storage: {{filesystem: {{rootdirectory: {folder}/data}}}}\n"
            f"http: {{addr: {self.address}}}\n{auth}"
        )
        self._credentials = ["--dest-creds", f"{USER}:{PASSWORD}"] if password else []

    def __enter__(self) -> "Registry":
        with (self._folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", "docker-registry", "serve", str(self._folder / "config.yml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        host, _, port = self.address.partition(":")
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                return self
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self._folder / "log").read_text()) from None
                time.sleep(0.02)

    def __exit__(self, *_) -> None:
        self._process.kill()
        self._process.wait()

    def push_index(self, repository: str, tag: str, digests: dict[str, str]) -> None:
        """Push an image of several architectures: architecture -> digest of a pushed image."""
        kind = "application/vnd.oci.image.%s.v1+json"
        entries = [
            {
                "mediaType": kind % "manifest",
                "digest": digest,
                "size": self._size(repository, digest),
                "platform": {"os": "linux", "architecture": architecture},
            }
            for architecture, digest in digests.items()
        ]
        body = json.dumps({"schemaVersion": 2, "mediaType": kind % "index", "manifests": entries})
        self._request("PUT", f"/v2/{repository}/manifests/{tag}", body, {"Content-Type": kind % "index"})

    def _size(self, repository: str, digest: str) -> int:
        return len(
            self._request(
                "GET",
                f"/v2/{repository}/manifests/{digest}",
                None,
                {"Accept": "application/vnd.oci.image.manifest.v1+json"},
            )
        )

    def _request(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> bytes:
        connection = http.client.HTTPConnection(self.address, timeout=60)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        assert response.status < 300, content
        return content

    def push(self, layout: Path, tag: str, name: str) -> None:
        _run(
            "skopeo",
            "copy",
            "--quiet",
            "--dest-tls-verify=false",
            *self._credentials,
            f"oci:{layout}:{tag}",
            f"docker://{self.address}/{name}",
        )


class Proxy:
    """A proxy in front of a registry. `blob_bytes` counts the transferred bytes; `before(path)` may wait, or return
    a status to respond with."""

    def __init__(self, upstream: str):
        self.blob_bytes, self.requests = 0, []
        self.before: Callable[[str], int | None] = lambda path: None
        proxy, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                with lock:
                    proxy.requests.append(self.path)
                if status := proxy.before(self.path):
                    self.send_response(status)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                upstream_connection = http.client.HTTPConnection(upstream, timeout=60)
                upstream_connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():  # a name may occur several times
                    upstream_connection.putheader(name, value)
                upstream_connection.endheaders()
                response = upstream_connection.getresponse()
                self.send_response(response.status)
                for name, value in response.getheaders():
                    self.send_header(name, value)
                self.end_headers()
                while self.command == "GET" and (chunk := response.read(CHUNK)):
                    if "/blobs/" in self.path:
                        with lock:
                            proxy.blob_bytes += len(chunk)
                    self.wfile.write(chunk)
                upstream_connection.close()

            do_HEAD = do_GET

            def log_message(self, *_) -> None:
                """Silent: the tests read the counters."""

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:  # the client was killed
                    self.close_connection = True

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"


@contextmanager
def proxy_to(registry: Registry) -> Iterator[Proxy]:
    proxy = Proxy(registry.address)
    thread = threading.Thread(target=proxy._server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield proxy
    finally:
        proxy._server.shutdown()
        proxy._server.server_close()
        thread.join()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _run(*command: str) -> None:
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
