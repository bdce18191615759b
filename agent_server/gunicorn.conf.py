"""gunicorn's settings: one worker process, because one dispatcher decides; threads, because clients long-poll.

Threads are made on demand, so a high ceiling costs nothing until clients wait.
"""

import os
import signal
import sys

from gunicorn.arbiter import Arbiter

from agent_server.api.sessions import MOST_HELD, closing
from agent_server.config import Settings
from client.errors import StackError

_settings = Settings.from_environment(os.environ)
bind = [f"{_settings.host}:{_settings.port}"]
workers = 1
worker_class = "gthread"
threads = MOST_HELD + 200
worker_connections = 2400
backlog = 2048
timeout = 0  # a long poll is not a hang
graceful_timeout = 10
keepalive = 75
loglevel = "warning"
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None


def post_worker_init(worker):
    """In the serving process: bring the dispatcher up, or end the server with the reason."""
    try:
        worker.app.wsgi().extensions["dispatcher"].start()
    except StackError as failure:
        print(f"agent_server: {failure}", file=sys.stderr, flush=True)
        sys.exit(Arbiter.APP_LOAD_ERROR)  # gunicorn does not start such a worker again
    _close_early(signal.getsignal(signal.SIGTERM))


def _close_early(end):
    """On SIGTERM let go of held answers first. gunicorn waits for them, and after graceful_timeout kills the worker before it can
    stop its sessions."""

    def close(number, frame):
        closing.set()
        end(number, frame)

    signal.signal(signal.SIGTERM, close)


def worker_exit(_server, worker):
    """The serving process ends: stop what runs."""
    if worker.app.callable is not None:
        worker.app.callable.extensions["dispatcher"].stop()
