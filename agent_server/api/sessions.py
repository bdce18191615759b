"""The contract's three calls: create, get (with long poll), cancel.

Invariant: a repeated call answers what the first one did.
"""

import shutil
import threading
import time
from typing import Any

from flask import Blueprint, Response, current_app, jsonify, request

from agent_server import base_urls
from client.errors import InvalidRequest, StorageError
from client.wire import SessionRequest, SessionView

blueprint = Blueprint("sessions", __name__)
LONGEST_WAIT_S = 3600.0  # what client/agent_client.sh asks for: one held GET a session
MOST_HELD = 1000  # answers; each holds a thread, and the server has 200 more, so that waiting clients never keep out a create or a cancel
SLICE_S = 1.0  # a held answer looks so often whether the server closes
_holding = threading.BoundedSemaphore(MOST_HELD)
closing = threading.Event()  # set when the server is to end: held answers are given as they are, so that it need not wait for them
FREE_BYTES_WANTED = 64 * 2**20  # below this a session could not keep its records; new ones are refused, old ones go on


@blueprint.post("/sessions")
def create() -> Response:
    session = SessionRequest.parse(_json())
    base_urls.check(session.base_url, current_app.extensions["settings"].allowed_base_urls)
    _check_disk()
    session_id, status = current_app.extensions["store"].submit(session, current_app.extensions["leases"].lease)
    current_app.extensions["dispatcher"].wake()
    return jsonify(session_id=session_id, status=status)


@blueprint.get("/sessions/<session_id>")
def get(session_id: str) -> Response:
    """One more waiting client than can be held is answered at once, and asks again after its own pause."""
    wait_s = _wait_s()
    held = wait_s > 0 and _holding.acquire(blocking=False)
    try:
        view = _wait(session_id, wait_s if held else 0.0)
    finally:
        if held:
            _holding.release()
    return jsonify(view.model_dump(mode="json"))


def _wait(session_id: str, wait_s: float) -> SessionView:
    dispatcher, deadline = current_app.extensions["dispatcher"], time.monotonic() + wait_s
    while True:
        left_s = 0.0 if closing.is_set() else deadline - time.monotonic()
        view = dispatcher.wait_terminal(session_id, min(left_s, SLICE_S))
        if view.status.terminal or left_s <= SLICE_S:
            return view


@blueprint.post("/sessions/<session_id>/cancel")
def cancel(session_id: str) -> tuple[str, int]:
    current_app.extensions["store"].request_cancel(session_id)
    current_app.extensions["dispatcher"].wake()
    return "", 204


def _json() -> Any:
    """The body, None where it is no JSON."""
    try:
        return request.get_json(force=True, silent=True)
    except RecursionError:  # thousands of brackets
        return None


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
        raise StorageError(
            f"{free >> 20} MiB are free under {work_dir}, a new session wants {FREE_BYTES_WANTED >> 20}; free some and ask again"
        )
