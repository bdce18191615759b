"""Messages between the server and the fork server: length-prefixed bytes on a socket pair.

Invariant: light to import; the server loads neither agents nor grading through it.
"""

import json
import socket
from dataclasses import asdict

from agent_server.tasks.task import Task
from agent_server.worker.job import Job
from client.errors import ServerError, WorkerLost

READY = b"ready"  # the fork server's first message
LENGTH_BYTES = 4


def encode_job(job: Job) -> bytes:
    """The request for a worker. Raises TypeError for a task that is not JSON."""
    return json.dumps(asdict(job)).encode()


def decode_job(message: bytes) -> Job:
    """Inverse of `encode_job`."""
    fields = json.loads(message)
    return Job(**fields | {"task": Task.from_dict(fields["task"])})


def encode_pid(pid: int) -> bytes:
    """The reply with a worker's pid."""
    return json.dumps({"pid": pid}).encode()


def encode_failure(failure: BaseException, *, transient: bool) -> bytes:
    """The reply where no worker was started. `transient`: another attempt may succeed."""
    text = f"{type(failure).__name__}: {failure}"[:1000]
    return json.dumps({"failure": text, "transient": transient}).encode()


def decode_pid(reply: bytes) -> int:
    """The pid of the worker that was started. Raises ServerError or, where another attempt may succeed, WorkerLost."""
    fields = json.loads(reply)
    if "pid" in fields:
        return int(fields["pid"])
    kind = WorkerLost if fields["transient"] else ServerError
    raise kind(f"no worker could be started for the session: {fields['failure']}")


def send(connection: socket.socket, message: bytes) -> None:
    """Raises OSError when the other end is gone."""
    connection.sendall(len(message).to_bytes(LENGTH_BYTES) + message)


def receive(connection: socket.socket) -> bytes:
    """One message; empty at the end of the connection."""
    size = _read(connection, LENGTH_BYTES)
    return _read(connection, int.from_bytes(size)) if len(size) == LENGTH_BYTES else b""


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (chunk := connection.recv(size - len(data))):
        data += chunk
    return bytes(data)
