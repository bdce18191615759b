"""Routes of the contract's three calls: create, get (with long poll), cancel.

Invariant: a repeated call has the result of the first one.
"""

import shutil
import threading

from flask import Blueprint, Response, current_app, jsonify, request

from agent_server.api import base_urls
from agent_server.api.body import read_json
from agent_server.scheduling.fair_lock import FairLock
from client.errors import DiskFull, InvalidRequest, ServerStopping
from client.wire import SessionRequest

blueprint = Blueprint("sessions", __name__)
MAX_WAIT_S = 3600.0  # client/agent_client.py asks for this: one long poll per session
# Each long poll holds a thread. The server has 200 threads more, so that long polls never block a create or a cancel.
MAX_LONG_POLLS = 1000
_long_poll_slots = threading.BoundedSemaphore(MAX_LONG_POLLS)
_create_lock = FairLock()
MIN_FREE_BYTES = 64 * 2**20  # below this new sessions are refused, so that running ones can keep their records


@blueprint.post("/sessions")
def create() -> Response:
    session = SessionRequest.parse(read_json())
    store, service, settings = (current_app.extensions[name] for name in ("store", "service", "settings"))
    base_urls.check(session.base_url, settings.base_urls)
    if service.draining:
        raise ServerStopping("the server drains and takes no new sessions; send it again after the restart")
    _check_disk()
    with _create_lock:
        session_id, status = store.submit(session, current_app.extensions["task_order"])
    current_app.extensions["client_watch"].note(session_id)
    service.wake()
    return jsonify(session_id=session_id, status=status)


@blueprint.get("/sessions/<session_id>")
def get(session_id: str) -> Response:
    """Beyond MAX_LONG_POLLS the response is immediate; the client repeats the call after its own pause."""
    wait_s, watch = _wait_s(), current_app.extensions["client_watch"]
    held = wait_s > 0 and _long_poll_slots.acquire(blocking=False)
    try:
        with watch.waiting(session_id, request.environ.get("gunicorn.socket") if held else None):
            view = current_app.extensions["long_polls"].wait_terminal(session_id, wait_s if held else 0.0)
    finally:
        if held:
            _long_poll_slots.release()
    return jsonify(view.model_dump(mode="json"))


@blueprint.post("/sessions/<session_id>/cancel")
def cancel(session_id: str) -> tuple[str, int]:
    current_app.extensions["store"].request_cancel(session_id)
    current_app.extensions["service"].wake()
    return "", 204


def _wait_s() -> float:
    text = request.args.get("wait", "0")
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = -1.0
    if not 0.0 <= wait_s < float("inf"):
        raise InvalidRequest(f"query 'wait' must be a number of seconds, 0 or more; got {text!r:.80}", field="wait")
    return min(wait_s, MAX_WAIT_S)


def _check_disk() -> None:
    work_dir = current_app.extensions["settings"].work_dir
    free = shutil.disk_usage(work_dir).free
    if free < MIN_FREE_BYTES:
        raise DiskFull(
            f"a new session needs {MIN_FREE_BYTES >> 20} MiB free under {work_dir}, and {free >> 20} are;"
            " free some and repeat the call"
        )
