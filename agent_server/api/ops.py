"""What an operator asks and sets: alive, ready, how many, how much. Never names a session.

Invariant: health and readiness need no token, everything else does.
"""

from flask import Blueprint, Response, current_app, jsonify

from agent_server.api.body import read_json
from client.errors import InvalidRequest

blueprint = Blueprint("ops", __name__)
OPEN_TO_ALL = {"ops.healthz", "ops.readyz"}
LARGEST_LIMIT = 1_000_000


@blueprint.get("/healthz")
def healthz() -> tuple[Response, int]:
    """200 while the server lives and works off its sessions, 503 when it cannot."""
    dispatcher = current_app.extensions["dispatcher"]
    body = {"ready": dispatcher.ready, "draining": dispatcher.draining}
    body |= {
        "limits": current_app.extensions["dispatcher"].limits(),
        "sessions": current_app.extensions["store"].counts(),
    }
    return jsonify(body), 200 if dispatcher.ready or dispatcher.draining else 503


@blueprint.get("/readyz")
def readyz() -> tuple[Response, int]:
    """200 while new sessions are accepted and run, 503 before that and while the server drains."""
    ready = current_app.extensions["dispatcher"].ready
    return jsonify(ready=ready), 200 if ready else 503


@blueprint.get("/metrics")
def metrics() -> Response:
    """Prometheus' text format."""
    return Response(
        current_app.extensions["metrics"].exposition(), content_type="text/plain; version=0.0.4; charset=utf-8"
    )


@blueprint.get("/limits")
def limits() -> Response:
    return jsonify(current_app.extensions["dispatcher"].limits())


@blueprint.patch("/limits")
def change_limits() -> Response:
    """Change some of them, until the next start. Nothing that runs is stopped."""
    wanted = read_json()
    known = current_app.extensions["dispatcher"].limits()
    if not isinstance(wanted, dict) or not wanted:
        raise InvalidRequest(f"the body must be a JSON object with some of {', '.join(known)}")
    for name, value in wanted.items():
        if name not in known:
            raise InvalidRequest(f"field {name!r:.80}: no such limit; there are {', '.join(known)}", field=name[:80])
        # JSON knows one kind of number: 4.0 is a whole one.
        if type(value) not in (int, float) or not 1 <= value <= LARGEST_LIMIT or value != int(value):
            raise InvalidRequest(
                f"field '{name}' must be a whole number from 1 to {LARGEST_LIMIT}; got {value!r:.80}", field=name
            )
    current_app.extensions["store"].set_limits({name: int(value) for name, value in wanted.items()})
    current_app.extensions["dispatcher"].wake()
    return jsonify(current_app.extensions["dispatcher"].limits())
