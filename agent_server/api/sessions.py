"""The contract's three calls: create, get (with long poll), cancel.

Invariant: a repeated call answers what the first one did.
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
LONGEST_WAIT_S = 3600.0  # what client/agent_client.sh asks for: one held GET a session
MOST_HELD = 1000  # answers; each holds a thread, and the server has 200 more, so that waiting clients never keep out a create or a cancel
_holding = threading.BoundedSemaphore(MOST_HELD)
_creating = FairLock()
FREE_BYTES_WANTED = 64 * 2**20  # below this a session could not keep its records; new ones are refused, old ones go on


@blueprint.post("/sessions")
def create() -> Response:
    session = SessionRequest.parse(read_json())
    store, dispatcher, settings = (current_app.extensions[name] for name in ("store", "dispatcher", "settings"))
    base_urls.check(session.base_url, settings.base_urls)
    if dispatcher.draining:
        raise ServerStopping("the server drains and takes no new sessions; its successor will")
    _check_disk()
    with _creating:
        session_id, status = store.submit(session, current_app.extensions["task_order"])
    dispatcher.wake()
    return jsonify(session_id=session_id, status=status)


@blueprint.get("/sessions/<session_id>")
def get(session_id: str) -> Response:
    """One more waiting client than can be held is answered at once, and asks again after its own pause."""
    wait_s = _wait_s()
    held = wait_s > 0 and _holding.acquire(blocking=False)
    try:
        view = current_app.extensions["dispatcher"].wait_terminal(session_id, wait_s if held else 0.0)
    finally:
        if held:
            _holding.release()
    return jsonify(view.model_dump(mode="json"))


@blueprint.post("/sessions/<session_id>/cancel")
def cancel(session_id: str) -> tuple[str, int]:
    current_app.extensions["store"].request_cancel(session_id)
    current_app.extensions["dispatcher"].wake()
    return "", 204


def _wait_s() -> float:
    text = request.args.get("wait", "0")
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = -1.0
    if not 0.0 <= wait_s < float("inf"):
        raise InvalidRequest(f"query 'wait' must be a number of seconds, 0 or more; got {text!r:.80}", field="wait")
    return min(wait_s, LONGEST_WAIT_S)


def _check_disk() -> None:
    work_dir = current_app.extensions["settings"].work_dir
    free = shutil.disk_usage(work_dir).free
    if free < FREE_BYTES_WANTED:
        raise DiskFull(
            f"{free >> 20} MiB are free under {work_dir}, a new session wants {FREE_BYTES_WANTED >> 20}; free some and ask again"
        )
