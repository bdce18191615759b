"""HTTP routes of the gateway: OpenAI's API for agents, control routes for the trainer.

Invariant: routes contain no logic. Every failure is answered as `{"error": {"message", "type", "code", "param"}}` with
the HTTP status of its class.
"""

import hmac
import json
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from pydantic import BaseModel, Field, StrictInt, StrictStr, ValidationError

from client.errors import InvalidRequest, StackError, Unauthorized
from trainer.engines.base import Sampling
from trainer.gateway.chat import parse_chat_request, stream_chunks
from trainer.gateway.session import Sessions

MAX_BODY_BYTES = 64 * 2**20
# `/v1` in this project, nothing in Relax, and before it the path of gateway.public_url, unless a proxy takes it off.
ANY_PREFIX = "/{prefix:(.+/)?}"
_log = logging.getLogger(__name__)


class _OpenBody(BaseModel, extra="forbid"):
    session_id: StrictStr = Field(min_length=1)
    key: StrictStr = Field(min_length=1)
    sampling: Sampling = Sampling()


class _VersionBody(BaseModel, extra="forbid"):
    version: StrictInt = Field(ge=0)


def create_app(sessions: Sessions, control_token: str) -> web.Application:
    """The gateway as an aiohttp application.

    Run it with `handler_cancellation=True`: a client that disconnects then cancels its call.
    """

    async def chat_completions(request: web.Request) -> web.StreamResponse:
        session = sessions.for_key(_bearer_token(request))
        chat = parse_chat_request(await _json(request))
        body = await session.complete(chat)
        if not chat.stream:
            return web.json_response(body)
        events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in stream_chunks(body, chat.include_usage))
        return web.Response(text=f"{events}data: [DONE]\n\n", content_type="text/event-stream")

    async def models(request: web.Request) -> web.Response:
        sessions.for_key(_bearer_token(request))
        return web.json_response(
            {"object": "list", "data": [{"id": sessions.model, "object": "model", "owned_by": "trainer"}]}
        )

    async def open_session(request: web.Request) -> web.Response:
        body = await _control_body(request, _OpenBody)
        sessions.open(body.session_id, body.key, body.sampling)
        return web.json_response({"session_id": body.session_id})

    async def close_session(request: web.Request) -> web.Response:
        require_control(request)
        return web.json_response(await sessions.close(request.match_info["session_id"]))

    async def status(request: web.Request) -> web.Response:
        require_control(request)
        return web.json_response(sessions.status())

    async def set_version(request: web.Request) -> web.Response:
        sessions.set_version((await _control_body(request, _VersionBody)).version)
        return web.json_response({})

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    def require_control(request: web.Request) -> None:
        if not hmac.compare_digest(_bearer_token(request).encode(), control_token.encode()):
            raise Unauthorized("the control token must be the gateway's GATEWAY_CONTROL_TOKEN; this one is unknown")

    async def _control_body(request: web.Request, shape: type[BaseModel]):
        require_control(request)
        try:
            return shape.model_validate(await _json(request))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"]) or "body"
            raise InvalidRequest(f"{field}: {first['msg']}", field=field) from None

    app = web.Application(middlewares=[_error_responses], client_max_size=MAX_BODY_BYTES)
    app.add_routes(
        [
            web.post(ANY_PREFIX + "chat/completions", chat_completions),
            web.get(ANY_PREFIX + "models", models),
            web.post("/control/sessions", open_session),
            web.delete("/control/sessions/{session_id}", close_session),
            web.get("/control/status", status),
            web.put("/control/version", set_version),
            web.get("/healthz", healthz),
        ]
    )
    return app


@web.middleware
async def _error_responses(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]):
    try:
        return await handler(request)
    except StackError as error:
        return _error(error.http_status, str(error), error.code, error.field)
    except web.HTTPException as error:  # no such route or method, body too large
        return _error(error.status, error.reason, "invalid_request", None)
    except Exception:
        _log.exception("%s %s failed", request.method, request.path)
        return _error(500, "the gateway failed; its log has the traceback", "internal", None)


def _error(status: int, message: str, code: str, param: str | None) -> web.Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return web.json_response({"error": {"message": message, "type": kind, "code": code, "param": param}}, status=status)


def _bearer_token(request: web.Request) -> str:
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token:
        raise Unauthorized("the Authorization header must be: Bearer KEY")
    return token


async def _json(request: web.Request):
    try:
        return json.loads(await request.text())
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body must be JSON: {error}", field="body") from None
