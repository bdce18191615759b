"""Fork server: a process with the agent preloaded. Its workers start in milliseconds and share its memory.

Run as `python -m agent_server.executors.fork_server FD`, FD being one end of a socket pair. It receives the settings
(JSON) first and answers READY; then it receives one Job per request and answers the worker's pid, or why there is none.
Invariant: single-threaded, so that forking is safe; workers outlive it and need nothing from it. No job ends it.
"""

import gc
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

from agent_server.agents.registry import preload_agent
from agent_server.config import Settings
from agent_server.executors.messages import READY, decode_job, encode_failure, encode_pid, receive, send
from agent_server.executors.redacted_output import RedactedOutput
from agent_server.grading.datasets.registry import load_dataset
from agent_server.private_files import open_private
from agent_server.sandboxes.processes import become_subreaper
from agent_server.worker import process as worker
from agent_server.worker.job import Job

log = logging.getLogger(__name__)


def main(connection: socket.socket) -> None:
    """Serve until the other end closes."""
    settings = Settings.model_validate_json(receive(connection))
    output = RedactedOutput.install()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    preload_agent(settings)
    gc.collect()
    gc.freeze()  # the children share these pages as long as no collection writes to them
    # Orphans of a killed worker's sandboxes become children of this process. It ignores SIGCHLD: the kernel reaps them.
    become_subreaper()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    send(connection, READY)
    while message := receive(connection):
        send(connection, _start_worker(connection, message, settings, output))


def _start_worker(connection: socket.socket, message: bytes, settings: Settings, output: RedactedOutput) -> bytes:
    """The reply to a job: its worker's pid, or why it has none."""
    try:
        job = decode_job(message)
        load_dataset(job.task.dataset).preload(job.task)
    except Exception as failure:  # the dataset's class may be the user's
        log.exception("a job is refused")
        return encode_failure(failure, transient=False)
    try:
        pid = os.fork()
    except OSError as refused:  # too many processes, or no memory
        return encode_failure(refused, transient=True)
    if pid == 0:
        output.hide(job.api_key)
        _run_worker(connection, job, settings)
    return encode_pid(pid)


def _run_worker(connection: socket.socket, job: Job, settings: Settings) -> NoReturn:
    """In the child. It must never return into the fork server's loop."""
    try:
        connection.close()
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _redirect_output(settings.log_dir / f"{job.session_id}.log")
        worker.run(job, settings)
    except BaseException:
        logging.exception("worker of session %s", job.session_id)
        os._exit(1)
    os._exit(0)


def _redirect_output(path: Path) -> None:
    descriptor = open_private(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the server to handle
    main(socket.socket(fileno=int(sys.argv[1])))
