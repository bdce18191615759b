"""Route that lists the task ids."""

from flask import Blueprint, Response, current_app, jsonify

from agent_server.tasks.order import MODES

blueprint = Blueprint("tasks", __name__)


@blueprint.get("/tasks")
def tasks() -> Response:
    """Row ids by mode, in file order."""
    return jsonify({mode: current_app.extensions["catalog"].ids(mode) for mode in MODES})
