"""`create_app()`: constructs the server's parts and connects them.

Invariant: wiring only. Building the app starts nothing; the serving process starts and stops the service.
"""

import hmac
import logging

from flask import Flask, Response, current_app, jsonify, request
from werkzeug.exceptions import HTTPException

from agent_server.api import openapi, ops, sessions, tasks
from agent_server.config import Settings
from agent_server.control_token import control_token
from agent_server.executors.base import Executor
from agent_server.executors.local import LocalExecutor
from agent_server.observability.drift import DriftAlarm
from agent_server.observability.events import EventLog
from agent_server.observability.metrics import Metrics
from agent_server.observability.publisher import Publisher
from agent_server.scheduling.client_watch import ClientWatch
from agent_server.scheduling.dispatcher import Dispatcher
from agent_server.scheduling.inbox import Inbox
from agent_server.scheduling.long_polls import LongPolls
from agent_server.scheduling.loop import Loop
from agent_server.scheduling.retention import Retention
from agent_server.scheduling.service import BackgroundService
from agent_server.scheduling.shutdown import Shutdown
from agent_server.store.store import Store
from agent_server.tasks.catalog import open_catalog
from client.errors import StackError, Unauthorized

log = logging.getLogger(__name__)
BODY_LIMIT_BYTES = 4 * 2**20
RETRY_AFTER_S = 5


def create_app(settings: Settings, executor: Executor | None = None) -> Flask:
    """The HTTP application. Without an `executor`, workers are local processes.

    `app.extensions["service"]` has to be started before sessions run. Raises ConfigError.
    """
    app = Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = BODY_LIMIT_BYTES
    app.json.sort_keys = False  # type: ignore[attr-defined]  # of Flask's default provider
    executor = executor or LocalExecutor(settings)
    catalog = open_catalog(settings)
    store = Store(settings.work_dir)
    long_polls = LongPolls(store)
    drift = DriftAlarm()
    metrics = Metrics(store, drift, serving=lambda: service.ready)
    dispatcher = Dispatcher(settings, store, catalog.get, executor)
    publisher = Publisher(
        store, EventLog(settings.event_log), wake=long_polls.wake, observers=[metrics.observe, drift.observe]
    )
    retention = Retention(settings, store)
    inbox = Inbox(settings.notify_address, settings.work_dir)
    client_watch = ClientWatch(store, settings.client_timeout_s)
    loop = Loop(inbox, [dispatcher.reconcile, publisher.publish, client_watch.check, retention.sweep])
    service = BackgroundService(settings, store, executor, dispatcher, long_polls, inbox, loop)
    shutdown = Shutdown(store, dispatcher, long_polls, service, settings.drain_timeout_s)
    app.extensions.update(
        settings=settings,
        control_token=control_token(settings),
        catalog=catalog,
        task_order=catalog.order(settings.seed, shuffle=settings.shuffle),
        store=store,
        long_polls=long_polls,
        client_watch=client_watch,
        metrics=metrics,
        service=service,
        shutdown=shutdown,
    )
    for blueprint in (sessions.blueprint, tasks.blueprint, ops.blueprint, openapi.blueprint):
        app.register_blueprint(blueprint)
    app.before_request(_check_token)
    app.register_error_handler(StackError, _stack_error)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _unexpected)
    return app


def _check_token() -> None:
    settings, control = (current_app.extensions[name] for name in ("settings", "control_token"))
    if request.endpoint in ops.OPEN_TO_ALL:
        return
    token = control if request.endpoint in ops.CONTROL else settings.token
    sent = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if token and not hmac.compare_digest(sent.encode(), token.encode()):
        place = "AGENT_SERVER_TOKEN" if settings.token else "token, the file control_token of its work directory"
        raise Unauthorized(f"this call requires the server's {place}; send `Authorization: Bearer TOKEN`")


def _stack_error(error: StackError) -> tuple[Response, int]:
    response = jsonify(error=error.as_dict())
    if error.http_status in (429, 503):
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response, error.http_status


def _http_error(error: HTTPException) -> tuple[Response, int]:
    """Flask's own errors (unknown path, wrong method, body too large), in the format of all errors."""
    code = (error.name or "error").lower().replace(" ", "_")
    body = {"boundary": "client", "code": code, "message": error.description}
    return jsonify(error=body), error.code or 500


def _unexpected(error: Exception) -> tuple[Response, int]:
    log.exception("%s %s", request.method, request.path)
    return jsonify(error=StackError(f"{type(error).__name__}: {error}").as_dict()), 500
