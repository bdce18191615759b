"""An HTTP proxy that leads every host to one address on loopback and records what it was asked for.

A host that no machine has (`*.invalid`) is reached through it or not at all.
"""

import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class RecordingProxy:
    """`leads_to`: HOST:PORT behind every name. `requests`: method and host of each request. `logins`: what came in
    Proxy-Authorization."""

    leads_to: str = ""
    url: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)
    logins: set[str] = field(default_factory=set)

    def variables(self, login: str = "") -> dict[str, str]:
        """All proxy variables, set to this proxy."""
        url = self.url.replace("http://", f"http://{login}@") if login else self.url
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        return {name: url for upper in names for name in (upper, upper.lower())} | {"NO_PROXY": "", "no_proxy": ""}


@contextmanager
def recording_proxy() -> Iterator[RecordingProxy]:
    proxy = RecordingProxy()

    class Handler(socketserver.StreamRequestHandler):
        rbufsize = 0  # what follows the head is read from the socket

        def handle(self):
            method, target, _ = self.rfile.readline().decode().split()
            head = []
            while line := self.rfile.readline().strip():
                head.append(line.decode())
            address = urlsplit(target if "://" in target else f"//{target}")
            proxy.requests.append((method, address.hostname or ""))
            is_login = [line.lower().startswith("proxy-authorization:") for line in head]
            proxy.logins.update(line.partition(": ")[2] for line, login in zip(head, is_login, strict=True) if login)
            host, _, port = proxy.leads_to.rpartition(":")
            with socket.create_connection((host, int(port))) as upstream:
                if method == "CONNECT":
                    self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                else:
                    kept = [line for line, login in zip(head, is_login, strict=True) if not login]
                    kept = [line for line in kept if not line.lower().startswith("connection:")]
                    path = address._replace(scheme="", netloc="").geturl() or "/"
                    lines = [f"{method} {path} HTTP/1.1", *kept, "Connection: close", "", ""]
                    upstream.sendall("\r\n".join(lines).encode())
                while ready := select.select([self.connection, upstream], [], [], 60)[0]:
                    data = ready[0].recv(65536)
                    if not data:
                        return
                    (upstream if ready[0] is self.connection else self.connection).sendall(data)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield proxy
        server.shutdown()
