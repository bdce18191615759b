"""/openapi.json describes the application: every route, and every response to what schemathesis sends.

The application is the real one, served on loopback, without its loop: sessions stay queued, and cost nothing.
"""

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig
from werkzeug.serving import make_server

from agent_server.api import sessions as sessions_api
from agent_server.api.openapi import OPERATIONS, WAIT
from agent_server.app import BODY_LIMIT_BYTES, create_app
from agent_server.config import Settings
from agent_server.scheduling.service import BackgroundService
from client.errors import SandboxDied
from client.wire import SessionRequest, Status
from tests.agent_server.conftest import DEMO, eventually

TOKEN = "s3cret"
EXAMPLES = 150  # an operation


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("openapi")
    environment = {
        "R2E_DATA_PATH": str(DEMO / "tasks"),
        "R2E_SIF_DIR": str(DEMO / "images"),
        "AGENT_SERVER_WORK_DIR": str(folder),
        "AGENT_SERVER_TOKEN": TOKEN,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BackgroundService, "ready", True)
        yield create_app(Settings.from_environment(environment))


@pytest.fixture(scope="module")
def url(app):
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def sessions(app) -> list[str]:
    """One session of each status that GET can return."""
    store, made = app.extensions["store"], []
    for end in (None, "completed", "failed", "cancelled"):
        request = SessionRequest(
            session_id=f"made {end}", group_id="g", mode="train", base_url="http://127.0.0.1:9", api_key="k"
        )
        session_id, _ = store.submit(request, app.extensions["task_order"])
        made.append(session_id)
        if end == "cancelled":
            store.request_cancel(session_id)
        if end in ("completed", "failed"):
            attempt = store.admit(session_id)["attempt"]
            fields = (
                dict(agent_exit_status="Submitted", submission="", n_calls=1, reward=0.5, grade={"status": "graded"})
                if end == "completed"
                else dict(error=SandboxDied("it died").as_dict())
            )
            store.finish(session_id, attempt, Status(end), seconds={"agent": 1.5}, **fields)
    return made


@pytest.fixture(scope="module")
def described(url, sessions):
    config = SchemathesisConfig.from_dict(
        {"generation": {"allow-extra-parameters": False, "with-security-parameters": False}}
    )
    schema = schemathesis.openapi.from_url(
        f"{url}/openapi.json", config=config, headers={"Authorization": f"Bearer {TOKEN}"}
    )

    @schema.hook
    def map_path_parameters(_context, parameters):
        """Mostly existing sessions."""
        if (
            parameters
            and "session_id" in parameters
            and (number := len(str(parameters["session_id"])) % (len(sessions) + 1)) < len(sessions)
        ):
            parameters["session_id"] = sessions[number]
        return parameters

    @schema.hook
    def map_query(_context, query):
        """Short waits only."""
        if query and isinstance(query.get("wait"), (int, float)) and query["wait"] > 0:
            query["wait"] = 0.01
        return query

    return schema


def cases(described, operation, mode: GenerationMode) -> Callable[[], None]:
    """A test of one operation with good or bad requests."""

    @given(described[operation.path][operation.method.upper()].as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    def run(case):
        case.call_and_validate(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=20)

    return run


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: f"{operation.method} {operation.path}")
def test_every_response_is_in_the_document(described, operation):
    cases(described, operation, GenerationMode.POSITIVE)()
    if operation.body or WAIT in operation.parameters:  # otherwise no input can be invalid
        cases(described, operation, GenerationMode.NEGATIVE)()


def test_every_route_is_in_the_document(app):
    routes = {
        (method.lower(), re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule))
        for rule in app.url_map.iter_rules()
        for method in rule.methods - {"HEAD", "OPTIONS"}
    }
    assert routes == {(operation.method, operation.path) for operation in OPERATIONS}


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"[" * 100_000, 400),
        (b'{"session_id": "\\ud800"}', 400),
        (b"x" * (BODY_LIMIT_BYTES + 1), 413),
        (b'{"a": 1e999}', 400),
    ],
    ids=["deep", "lone surrogate", "too large", "infinite"],
)
def test_hostile_bodies_are_refused_by_status(url, data, status):
    answer = requests.post(f"{url}/sessions", data=data, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=20)
    assert answer.status_code == status and answer.json()["error"]["message"]


def test_a_long_poll_beyond_the_limit_is_answered_at_once(app, url, monkeypatch):
    monkeypatch.setattr(sessions_api, "_long_poll_slots", threading.BoundedSemaphore(1))
    app.extensions["store"].set_limits(app.extensions["settings"].limits)  # schemathesis may have set a small queue
    request = SessionRequest(session_id="held", group_id="g", mode="train", base_url="http://127.0.0.1:9", api_key="k")
    session_id, _ = app.extensions["store"].submit(request, app.extensions["task_order"])

    def wait(seconds: int) -> str:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return requests.get(
            f"{url}/sessions/{session_id}", params={"wait": seconds}, headers=headers, timeout=20
        ).json()["status"]

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(wait, 3600)
        eventually(lambda: sessions_api._long_poll_slots._value == 0, what="the first is held")
        assert wait(3600) == "queued" and not first.done()
        app.extensions["store"].request_cancel(session_id)
        app.extensions["long_polls"].wake([session_id])
        assert first.result() == "cancelled" and sessions_api._long_poll_slots._value == 1


def test_health_alone_needs_no_token(url):
    for operation in OPERATIONS:
        answer = requests.request(operation.method, url + operation.path.replace("{session_id}", "x"), timeout=10)
        assert (answer.status_code != 401) == operation.open
