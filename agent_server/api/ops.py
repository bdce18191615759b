"""What an operator asks: alive, ready, how many. Never needs the token, never names a session."""

from flask import Blueprint, Response, current_app, jsonify

blueprint = Blueprint("ops", __name__)


@blueprint.get("/healthz")
def healthz() -> tuple[Response, int]:
    """200 while sessions can be accepted and run, 503 before and after."""
    ready = current_app.extensions["dispatcher"].ready
    body = {"ready": ready, "limits": current_app.extensions["settings"].limits, "sessions": current_app.extensions["store"].counts()}
    return jsonify(body), 200 if ready else 503
