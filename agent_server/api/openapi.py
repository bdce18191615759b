"""The API described: OpenAPI 3.1 at /openapi.json, its bodies from the pydantic models of the contract.

Invariant: every route and every answer that it can give stands in OPERATIONS; a test holds the running application against it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flask import Blueprint, Response, jsonify
from pydantic.json_schema import models_json_schema

from agent_server.api.ops import LARGEST_LIMIT
from agent_server.config import LIMIT_SETTINGS
from agent_server.tasks.order import MODES
from client.wire import SessionRequest, SessionView, Status

blueprint = Blueprint("openapi", __name__)

JSON = "application/json"
REFUSALS = {
    400: "The request is wrong; `field` says where",
    401: "The bearer token is missing or wrong",
    404: "There is no such session or task",
    413: "The body is too large",
    429: "Busy; ask again after Retry-After seconds",
    500: "A fault of the server",
    503: "Not ready, or draining; ask again after Retry-After seconds",
    507: "The disk is full; nothing is lost, ask again later",
}
SESSION_ID = {"name": "session_id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
WAIT = {
    "name": "wait", "in": "query", "description": "seconds to hold the answer until the session is terminal; an hour at most counts",
    "schema": {"type": "number", "minimum": 0},
}  # fmt: skip


LIMITS = {
    "type": "object", "minProperties": 1, "additionalProperties": False,
    "properties": {name: {"type": "integer", "minimum": 1, "maximum": LARGEST_LIMIT} for name in LIMIT_SETTINGS},
}  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """One method of one path. `answers`: status -> name of the body's schema ("" for none), or a media type that is not JSON."""

    method: str
    path: str
    summary: str
    answers: Mapping[int, str]
    refusals: tuple[int, ...] = ()
    body: str = ""
    parameters: tuple[Mapping[str, Any], ...] = field(default=())
    open: bool = False  # needs no token

    def describe(self) -> dict[str, Any]:
        refusals = {*self.refusals, 500} | (set() if self.open else {401})
        described: dict[str, Any] = {
            "summary": self.summary,
            "parameters": list(self.parameters),
            "responses": {str(status): _answer(name) for status, name in self.answers.items()}
            | {str(status): _answer("Refusal", REFUSALS[status]) for status in sorted(refusals)},
        }
        if self.body:
            described["requestBody"] = {"required": True, "content": {JSON: {"schema": _reference(self.body)}}}
        if self.open:
            described["security"] = []
        return described


# A new route is one more line here.
OPERATIONS = (
    Operation(
        "post",
        "/sessions",
        "Queue a session; the same session_id again is the same session",
        {200: "Created"},
        (400, 404, 413, 429, 503, 507),
        "SessionRequest",
    ),
    Operation(
        "get",
        "/sessions/{session_id}",
        "A session as it is, or as soon as it has ended",
        {200: "SessionView"},
        (400, 404, 507),
        "",
        (SESSION_ID, WAIT),
    ),
    Operation(
        "post", "/sessions/{session_id}/cancel", "Stop a session; repeatable", {204: ""}, (404, 507), "", (SESSION_ID,)
    ),
    Operation("get", "/tasks", "Row ids by mode, in file order", {200: "Tasks"}),
    Operation(
        "get", "/healthz", "Does the server live and work off its sessions", {200: "Health", 503: "Health"}, open=True
    ),
    Operation("get", "/readyz", "Are new sessions accepted and run", {200: "Ready", 503: "Ready"}, open=True),
    Operation("get", "/metrics", "For Prometheus", {200: "text/plain"}),
    Operation("get", "/limits", "The limits in force", {200: "Limits"}),
    Operation(
        "patch", "/limits", "Change some limits until the next start", {200: "Limits"}, (400, 413, 507), "Limits"
    ),
    Operation("get", "/openapi.json", "This document", {200: "Document"}),
)


@blueprint.get("/openapi.json")
def document() -> Response:
    return jsonify(describe())


def describe() -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = operation.describe()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Agent server",
            "version": "1",
            "description": "Runs sessions of software-engineering agents for a trainer.",
        },
        "paths": paths,
        "components": {"schemas": _schemas(), "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


def _schemas() -> dict[str, Any]:
    _, models = models_json_schema(
        [(SessionRequest, "validation"), (SessionView, "serialization")], ref_template="#/components/schemas/{model}"
    )
    counts = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}}
    text = {"type": "string"}
    return models["$defs"] | {
        "Created": _object(session_id=text, status={"enum": [str(status) for status in Status]}),
        "Refusal": _object(
            error=_object(boundary=text, code=text, message=text)
            | {"description": "`field` too, where one is at fault"}
        ),
        "Tasks": _object(**{mode: {"type": "array", "items": text} for mode in MODES}),
        "Ready": _object(ready={"type": "boolean"}),
        "Limits": LIMITS,
        "Health": _object(
            ready={"type": "boolean"},
            draining={"type": "boolean"},
            limits=counts,
            sessions={"type": "object", "additionalProperties": counts},
        ),
        "Document": _object(openapi=text, info={"type": "object"}, paths={"type": "object"}),
    }


def _object(**properties: Any) -> dict[str, Any]:
    """An object with all of these; more may follow."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _answer(name: str, description: str = "") -> dict[str, Any]:
    if not name:
        return {"description": "Done"}
    if "/" in name:
        return {"description": "Done", "content": {name: {}}}
    return {"description": description or "Done", "content": {JSON: {"schema": _reference(name)}}}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
