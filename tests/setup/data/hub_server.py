"""A fake dataset hub on loopback: the part of the hub's HTTP API that fetching a dataset needs.

    hub = Hub(); hub.add("owner/name", {"data/train.parquet": bytes}); with serving(hub) as url: ...

Large files are "LFS": their ETag is a sha256, and they come from a second address without authorization, like the real
hub's CDN.
Invariant: every request is recorded, and the responses to the library are those of the real hub, errors included.
"""

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LFS_FROM = 1000  # bytes
TOKEN = "hf_good"


@dataclass
class Repository:
    commits: dict[str, dict[str, bytes]]
    head: str
    gated: bool = False


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    sent: int = 0


@dataclass
class Hub:
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    # After this many bytes of a file, the rest is sent slowly.
    slow_after: int | None = None
    # Path -> bytes that are sent in place of the file's own.
    replaced: dict[str, bytes] = field(default_factory=dict)
    broken: int | None = None  # HTTP status of every response
    cdn: str = ""

    def add(self, name: str, files: dict[str, bytes], gated: bool = False) -> str:
        """Commit exactly these files; returns the commit's hash."""
        commit = hashlib.sha1(
            repr(sorted((path, hashlib.sha1(data).hexdigest()) for path, data in files.items())).encode()
        ).hexdigest()
        repository = self.repositories.setdefault(name, Repository({}, commit, gated))
        repository.commits[commit], repository.head = files, commit
        return commit

    def requests_to(self, part: str, method: str = "GET") -> list[Request]:
        return [request for request in self.requests if request.method == method and part in request.path]


def is_lfs(data: bytes) -> bool:
    return len(data) >= LFS_FROM


def checksum(data: bytes) -> str:
    return (
        hashlib.sha256(data).hexdigest() if is_lfs(data) else hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._respond()

    def do_GET(self) -> None:
        self._respond()

    def _respond(self) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        path = unquote(urlsplit(self.path).path)
        self.request_record = Request(self.command, path, {name.lower(): value for name, value in self.headers.items()})
        hub.requests.append(self.request_record)
        if hub.broken:
            return self._send(hub.broken, b"")
        if cdn := re.fullmatch(r"/cdn/([^/]+/[^/]+)/([0-9a-f]{40})/(.+)", path):
            name, commit, file = cdn.groups()
            data = hub.replaced.get(file, hub.repositories[name].commits[commit][file])
            return self._send_bytes(hub, data, {"ETag": f'"{hashlib.md5(data).hexdigest()}"'})
        if api := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(?:/(revision|tree)/(.+))?", path):
            name, kind, revision = api.groups()
        elif resolve := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/(refs/[^/]+/[^/]+|[^/]+)/(.+)", path):
            name, revision, file = resolve.groups()
            kind = "resolve"
        else:
            return self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        repository = hub.repositories.get(name)
        if repository is None:
            if self.headers.get("Authorization"):
                return self._send(404, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
            return self._send(
                401, b"", {"X-Error-Message": "Invalid username or password."}
            )  # the hub does not reveal private repositories
        if (
            repository.gated
            and kind == "resolve"
            and file != "README.md"
            and self.headers.get("Authorization") != f"Bearer {TOKEN}"
        ):
            code = 403 if self.headers.get("Authorization") else 401
            return self._send(
                code, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": f"Access to dataset {name} is restricted."}
            )
        commit = repository.head if revision in (None, "main") else revision
        if commit not in repository.commits:
            return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        files = repository.commits[commit]
        if kind == "tree":
            return self._send_json([self._entry(path, data) for path, data in files.items()])
        if kind == "resolve":
            return self._resolve(hub, name, commit, file, files)
        siblings = [self._sibling(path, data) for path, data in files.items()]
        self._send_json(
            {"id": name, "sha": commit, "siblings": siblings, "gated": "manual" if repository.gated else False}
        )

    @staticmethod
    def _entry(path: str, data: bytes) -> dict:
        lfs = {"lfs": {"oid": checksum(data), "size": len(data), "pointerSize": 134}} if is_lfs(data) else {}
        return {
            "type": "file",
            "path": path,
            "size": len(data),
            "oid": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
        } | lfs

    @staticmethod
    def _sibling(path: str, data: bytes) -> dict:
        lfs = {"lfs": {"sha256": checksum(data), "size": len(data), "pointerSize": 134}} if is_lfs(data) else {}
        return {
            "rfilename": path,
            "size": len(data),
            "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
        } | lfs

    def _resolve(self, hub: Hub, name: str, commit: str, file: str, files: dict[str, bytes]) -> None:
        if file not in files:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        data, headers = files[file], {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if is_lfs(data):
            linked = {
                "X-Linked-Etag": f'"{checksum(data)}"',
                "X-Linked-Size": str(len(data)),
                "Location": f"{hub.cdn}/cdn/{name}/{commit}/{file}",
            }
            return self._send(302, b"", headers | linked)
        self._send_bytes(hub, hub.replaced.get(file, data), headers | {"ETag": f'"{checksum(data)}"'})

    def _send_bytes(self, hub: Hub, data: bytes, headers: dict[str, str]) -> None:
        start = int(re.fullmatch(r"bytes=(\d+)-", self.headers["Range"])[1]) if self.headers.get("Range") else 0
        if start:
            headers = headers | {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        self._send(206 if start else 200, data[start:], headers, hub.slow_after)

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(
        self, status: int, data: bytes, headers: dict[str, str] | None = None, slow_after: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            for start in range(0, len(data), 1 << 16):
                chunk = data[start : start + (1 << 16)]
                if slow_after is not None and start >= slow_after:
                    time.sleep(0.2)
                self.wfile.write(chunk)
                self.request_record.sent += len(chunk)
        except OSError:  # the reader was killed
            self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True


@contextmanager
def serving(hub: Hub) -> Iterator[str]:
    """Yield the hub's URL; the hub stops with the context."""
    servers = [_Server(("127.0.0.1", 0), _Handler) for _ in range(2)]
    for server in servers:
        server.hub = hub  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    hub.cdn = f"http://127.0.0.1:{servers[1].server_port}"
    try:
        yield f"http://127.0.0.1:{servers[0].server_port}"
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
