"""OpenAPI 3.1 document at /openapi.json; its bodies come from the pydantic models of the contract.

Invariant: OPERATIONS has every route and each of its responses; a test compares the running application with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flask import Blueprint, Response, jsonify
from pydantic.json_schema import models_json_schema

from agent_server.api.ops import MAX_LIMIT
from agent_server.api.sessions import MAX_WAIT_S
from agent_server.config import LIMIT_SETTINGS
from agent_server.tasks.order import MODES
from client.wire import SessionRequest, SessionView, Status

blueprint = Blueprint("openapi", __name__)

JSON = "application/json"
ERRORS = {
    400: "Invalid request; `field` names the wrong field",
    401: "Bearer token missing or wrong",
    404: "No such session or task",
    409: "The session_id names a session of another request; `field` differs",
    413: "Body too large",
    429: "Queue full; repeat after Retry-After seconds",
    500: "Internal server error",
    503: "Not ready or draining; repeat after Retry-After seconds",
    507: "Disk full; nothing is lost, repeat later",
}
SESSION_ID = {"name": "session_id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
WAIT = {
    "name": "wait",
    "in": "query",
    "description": f"Seconds to wait until the session is terminal; more than {MAX_WAIT_S:g} count as {MAX_WAIT_S:g}",
    "schema": {"type": "number", "minimum": 0},
}


LIMITS = {
    "type": "object", "minProperties": 1, "additionalProperties": False,
    "properties": {name: {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT} for name in LIMIT_SETTINGS},
}  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """One method of one path. `responses`: status -> schema of its body, "" for none, or a media type besides JSON."""

    method: str
    path: str
    summary: str
    responses: Mapping[int, str]
    errors: tuple[int, ...] = ()
    body: str = ""
    parameters: tuple[Mapping[str, Any], ...] = field(default=())
    open: bool = False  # needs no token

    def describe(self) -> dict[str, Any]:
        """The operation object of the document."""
        errors = {*self.errors, 500} | (set() if self.open else {401})
        described: dict[str, Any] = {
            "summary": self.summary,
            "parameters": list(self.parameters),
            "responses": {str(status): _response(name) for status, name in self.responses.items()}
            | {str(status): _response("Error", ERRORS[status]) for status in sorted(errors)},
        }
        if self.body:
            described["requestBody"] = {"required": True, "content": {JSON: {"schema": _reference(self.body)}}}
        if self.open:
            described["security"] = []
        return described


# A new route is one more entry here.
OPERATIONS = (
    Operation(
        "post",
        "/sessions",
        "Queue a session; a repeated request returns the first session",
        {200: "Created"},
        (400, 404, 409, 413, 429, 503, 507),
        "SessionRequest",
    ),
    Operation(
        "get",
        "/sessions/{session_id}",
        "Get a session now, or as soon as it has ended",
        {200: "SessionView"},
        (400, 404, 507),
        "",
        (SESSION_ID, WAIT),
    ),
    Operation(
        "post",
        "/sessions/{session_id}/cancel",
        "Cancel a session; repeatable",
        {204: ""},
        (404, 507),
        "",
        (SESSION_ID,),
    ),
    Operation("get", "/tasks", "List task ids by mode, in file order", {200: "Tasks"}),
    Operation("get", "/healthz", "Health: the server runs its sessions", {200: "Health", 503: "Health"}, open=True),
    Operation(
        "get", "/readyz", "Readiness: new sessions are accepted and run", {200: "Ready", 503: "Ready"}, open=True
    ),
    Operation("get", "/metrics", "Prometheus metrics", {200: "text/plain"}),
    Operation("get", "/limits", "Get the limits in force", {200: "Limits"}),
    Operation("patch", "/limits", "Change limits until the next start", {200: "Limits"}, (400, 413, 507), "Limits"),
    Operation("get", "/openapi.json", "Get this document", {200: "Document"}),
)


@blueprint.get("/openapi.json")
def document() -> Response:
    return jsonify(describe())


def describe() -> dict[str, Any]:
    """The document."""
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
        "Error": _object(
            error=_object(boundary=text, code=text, message=text)
            | {"description": "With `field`, where one field is wrong"}
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
    """Schema of an object that requires these properties; more may follow."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _response(name: str, description: str = "") -> dict[str, Any]:
    if not name:
        return {"description": "Success"}
    if "/" in name:
        return {"description": "Success", "content": {name: {}}}
    return {"description": description or "Success", "content": {JSON: {"schema": _reference(name)}}}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
