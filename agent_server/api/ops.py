"""Routes for operators: health, readiness, metrics, limits.

Invariant: health and readiness need no token, everything else does if AGENT_SERVER_TOKEN is set. What changes the
server for everyone needs one always.
"""

from flask import Blueprint, Response, current_app, jsonify

from agent_server.api.body import read_json
from client.errors import InvalidRequest

blueprint = Blueprint("ops", __name__)
OPEN_TO_ALL = {"ops.healthz", "ops.readyz"}
CONTROL = {"ops.change_limits"}
MAX_LIMIT = 1_000_000


@blueprint.get("/healthz")
def healthz() -> tuple[Response, int]:
    """200 while the server runs its sessions or drains, 503 when it cannot."""
    service = current_app.extensions["service"]
    counts = current_app.extensions["store"].counts()
    body = {"ready": service.ready, "draining": service.draining, "limits": _limits(), "sessions": counts}
    return jsonify(body), 200 if service.ready or service.draining else 503


@blueprint.get("/readyz")
def readyz() -> tuple[Response, int]:
    """200 while new sessions are accepted and run, 503 before that and while the server drains."""
    ready = current_app.extensions["service"].ready
    return jsonify(ready=ready), 200 if ready else 503


@blueprint.get("/metrics")
def metrics() -> Response:
    """Prometheus' text format."""
    text = current_app.extensions["metrics"].exposition()
    return Response(text, content_type="text/plain; version=0.0.4; charset=utf-8")


@blueprint.get("/limits")
def limits() -> Response:
    return jsonify(_limits())


@blueprint.patch("/limits")
def change_limits() -> Response:
    """Change some limits until the next start. No running session is stopped."""
    requested = read_json()
    known = _limits()
    if not isinstance(requested, dict) or not requested:
        raise InvalidRequest(f"the body must be a JSON object with some of {', '.join(known)}")
    for name, value in requested.items():
        if name not in known:
            raise InvalidRequest(f"field {name!r:.80}: no such limit; known are {', '.join(known)}", field=name[:80])
        # JSON has one type of number: 4.0 is an integer.
        if type(value) not in (int, float) or not 1 <= value <= MAX_LIMIT or value != int(value):
            raise InvalidRequest(
                f"field '{name}' must be an integer from 1 to {MAX_LIMIT}; got {value!r:.80}", field=name
            )
    current_app.extensions["store"].set_limits({name: int(value) for name, value in requested.items()})
    current_app.extensions["service"].wake()
    return jsonify(_limits())


def _limits() -> dict[str, int]:
    """The limits in force, in the settings' order."""
    initial: dict[str, int] = current_app.extensions["settings"].limits
    return initial | current_app.extensions["store"].limits()
