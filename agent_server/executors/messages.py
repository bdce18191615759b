"""Messages between the server and the fork server: length-prefixed bytes on a socket pair.

Invariant: light to import; the server loads neither agents nor grading through it.
"""

import json
import socket
from dataclasses import asdict

from agent_server.tasks.task import Task
from agent_server.worker.job import Job

READY = b"ready"  # the fork server's first message
LENGTH_BYTES = 4


def encode_job(job: Job) -> bytes:
    """The request for a worker."""
    return json.dumps(asdict(job)).encode()


def decode_job(message: bytes) -> Job:
    """Inverse of `encode_job`."""
    fields = json.loads(message)
    return Job(**fields | {"task": Task.from_dict(fields["task"])})


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
