"""The process that forks workers: it has the agent imported, so a worker starts in milliseconds and shares its memory.

Run as `python -m agent_server.executors.fork_server FD`, FD being one end of a socket pair. Messages have
their length before them: first the settings, then one Job a request, answered by the worker's pid.
Invariant: single-threaded, so that forking is safe; workers outlive it and need nothing from it.
"""

import gc
import json
import logging
import os
import signal
import socket
import sys
from dataclasses import asdict
from pathlib import Path

from agent_server.agents.registry import preload_agent
from agent_server.config import Settings
from agent_server.grading.datasets import registry as datasets
from agent_server.sandboxes.processes import become_subreaper
from agent_server.tasks.task import Task
from agent_server.worker import process as worker
from agent_server.worker.job import Job

READY = b"ready"


def main(connection: socket.socket) -> None:
    """Serve until the other end closes."""
    settings = Settings.model_validate_json(receive(connection))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    preload_agent(settings)
    gc.collect()
    gc.freeze()  # the children share these pages as long as no collection writes to them
    # Sandboxes' orphans end up here when a worker was killed; the kernel reaps children of a process that ignores SIGCHLD.
    become_subreaper()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    send(connection, READY)
    while request := receive(connection):
        fields = json.loads(request)
        job = Job(**fields | {"task": Task.from_dict(fields["task"])})
        datasets.load(job.task.dataset).preload(job.task)
        pid = os.fork()
        if pid == 0:
            _be_worker(connection, job, settings)
        send(connection, str(pid).encode())


def _be_worker(connection: socket.socket, job: Job, settings: Settings) -> None:
    """Never returns: a worker must not run on into the server's loop, whatever happens."""
    try:
        connection.close()
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _log_to(settings.log_dir / f"{job.session_id}.log")
        worker.run(job, settings)
    except BaseException:
        logging.exception("worker of session %s", job.session_id)
        os._exit(1)
    os._exit(0)


def _log_to(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def encode(job: Job) -> bytes:
    """A request's message."""
    return json.dumps(asdict(job)).encode()


def send(connection: socket.socket, message: bytes) -> None:
    """Raises OSError when the other end is gone."""
    connection.sendall(len(message).to_bytes(4) + message)


def receive(connection: socket.socket) -> bytes:
    """One message; empty at the end of the connection."""
    size = _read(connection, 4)
    return _read(connection, int.from_bytes(size)) if len(size) == 4 else b""


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (chunk := connection.recv(size - len(data))):
        data += chunk
    return bytes(data)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in the terminal is the server's to handle
    main(socket.socket(fileno=int(sys.argv[1])))
