"""gunicorn's configuration: one process, since only one dispatcher may run; many threads, since clients long-poll.

Threads start on demand, so a high ceiling costs nothing until clients wait.
"""

import gc
import os
import signal
import sys
import threading

from gunicorn.arbiter import Arbiter

from agent_server.api.sessions import MAX_LONG_POLLS
from agent_server.config import Settings
from client.errors import StackError

_settings = Settings.from_environment(os.environ)
bind = [_settings.address]
workers = 1
worker_class = "gthread"
threads = MAX_LONG_POLLS + 200
worker_connections = 2400
backlog = 2048
timeout = 0  # a long poll is not a hang
graceful_timeout = int(_settings.drain_timeout_s) + 15
keepalive = 75
loglevel = "warning"
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None


def post_worker_init(worker):
    """Start the service in the serving process, or end the server with the reason."""
    extensions = worker.app.wsgi().extensions
    try:
        extensions["service"].start()
    except StackError as failure:
        print(f"agent_server: {failure}", file=sys.stderr, flush=True)
        sys.exit(Arbiter.APP_LOAD_ERROR)  # gunicorn does not start such a worker again
    _stop_in_order(worker, extensions["shutdown"])
    gc.freeze()  # imported objects stay; collecting over them stops every response for a tenth of a second


def _stop_in_order(worker, shutdown):
    """SIGTERM drains, SIGINT and SIGQUIT cancel; requests are answered meanwhile, and then gunicorn ends the worker.

    In threads: a signal handler interrupts the main thread anywhere, and must not wait for a lock that it holds.
    """

    def then_exit(shut_down):
        def handler(number, frame):
            def stop():
                shut_down()
                worker.handle_exit(number, frame)

            threading.Thread(target=stop, name="stop", daemon=True).start()

        return handler

    signal.signal(signal.SIGTERM, then_exit(shutdown.drain))
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, then_exit(shutdown.cancel_all))


def worker_exit(_server, worker):
    """Stop the service when the serving process ends."""
    if worker.app.callable is not None:
        worker.app.callable.extensions["service"].stop()
