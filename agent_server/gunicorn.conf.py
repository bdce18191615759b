"""gunicorn's settings: one worker process, because one dispatcher decides; threads, because clients long-poll.

Threads are made on demand, so a high ceiling costs nothing until clients wait.
"""

import gc
import os
import signal
import sys
import threading

from gunicorn.arbiter import Arbiter

from agent_server.api.sessions import MOST_HELD
from agent_server.config import Settings
from client.errors import StackError

_settings = Settings.from_environment(os.environ)
bind = [_settings.address]
workers = 1
worker_class = "gthread"
threads = MOST_HELD + 200
worker_connections = 2400
backlog = 2048
timeout = 0  # a long poll is not a hang
graceful_timeout = int(_settings.drain_timeout_s) + 15
keepalive = 75
loglevel = "warning"
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None


def post_worker_init(worker):
    """In the serving process: bring the dispatcher up, or end the server with the reason."""
    dispatcher = worker.app.wsgi().extensions["dispatcher"]
    try:
        dispatcher.start()
    except StackError as failure:
        print(f"agent_server: {failure}", file=sys.stderr, flush=True)
        sys.exit(Arbiter.APP_LOAD_ERROR)  # gunicorn does not start such a worker again
    _stop_in_order(worker, dispatcher)
    gc.freeze()  # what was imported stays; looking through it again and again stops every answer for a tenth of a second


def _stop_in_order(worker, dispatcher):
    """SIGTERM drains, SIGINT and SIGQUIT cancel what runs; calls are answered meanwhile, and then gunicorn ends the worker.

    In threads: a handler runs in the middle of whatever the main thread does, and may not wait for a lock held there.
    """

    def after(first):
        def handler(number, frame):
            def stop():
                first()
                dispatcher.release_waiters()
                worker.handle_exit(number, frame)

            threading.Thread(target=stop, name="stop", daemon=True).start()

        return handler

    signal.signal(signal.SIGTERM, after(dispatcher.drain))
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, after(dispatcher.cancel_all))


def worker_exit(_server, worker):
    """The serving process ends."""
    if worker.app.callable is not None:
        worker.app.callable.extensions["dispatcher"].stop()
