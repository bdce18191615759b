"""create_app(): the server's parts, wired.

Invariant: wiring only. Building the app starts nothing; `start()` and `stop()` belong to the process that serves it.
"""

import hmac
import logging

from flask import Flask, Response, current_app, jsonify, request
from werkzeug.exceptions import HTTPException

from agent_server.api import openapi, ops, sessions, tasks
from agent_server.config import Settings
from agent_server.executors.base import Executor
from agent_server.executors.local import LocalExecutor
from agent_server.observability.drift import DriftAlarm
from agent_server.observability.events import EventLog
from agent_server.observability.metrics import Metrics
from agent_server.scheduling.dispatcher import Dispatcher
from agent_server.store.store import Store
from agent_server.tasks.catalog import open_catalog
from client.errors import StackError, Unauthorized

log = logging.getLogger(__name__)
BODY_LIMIT_BYTES = 4 * 2**20
RETRY_AFTER_S = 5


def create_app(settings: Settings, executor: Executor | None = None) -> Flask:
    """The HTTP application; workers are local processes unless an `executor` is given. `app.extensions["dispatcher"]` has to be
    started before sessions run. Raises ConfigError."""
    app = Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = BODY_LIMIT_BYTES
    app.json.sort_keys = False
    catalog = open_catalog(settings)
    store = Store(settings.work_dir)
    drift = DriftAlarm()
    metrics = Metrics(store, drift, serving=lambda: dispatcher.ready)
    events = EventLog(store, settings.event_log, [metrics.observe, drift.observe])
    dispatcher = Dispatcher(settings, store, catalog, executor or LocalExecutor(settings), events)
    app.extensions.update(
        settings=settings,
        catalog=catalog,
        store=store,
        dispatcher=dispatcher,
        task_order=catalog.order(settings.seed),
        metrics=metrics,
    )
    for blueprint in (sessions.blueprint, tasks.blueprint, ops.blueprint, openapi.blueprint):
        app.register_blueprint(blueprint)
    app.before_request(_check_token)
    app.register_error_handler(StackError, _stack_error)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _unexpected)
    return app


def _check_token() -> None:
    token = current_app.extensions["settings"].token
    given = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if token and request.endpoint not in ops.OPEN_TO_ALL and not hmac.compare_digest(given.encode(), token.encode()):
        raise Unauthorized("this server wants `Authorization: Bearer TOKEN`, with its AGENT_SERVER_TOKEN")


def _stack_error(error: StackError) -> tuple[Response, int]:
    answer = jsonify(error=error.as_dict())
    if error.http_status in (429, 503):
        answer.headers["Retry-After"] = str(RETRY_AFTER_S)
    return answer, error.http_status


def _http_error(error: HTTPException) -> tuple[Response, int]:
    """Flask's own refusals (no such path, wrong method, body too large) in the shape of ours."""
    code = (error.name or "error").lower().replace(" ", "_")
    return jsonify(error={"boundary": "client", "code": code, "message": error.description}), error.code


def _unexpected(error: Exception) -> tuple[Response, int]:
    log.exception("%s %s", request.method, request.path)
    return jsonify(error=StackError(f"{type(error).__name__}: {error}").as_dict()), 500
