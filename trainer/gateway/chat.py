"""OpenAI's chat-completions format: request validation, response bodies and stream chunks.

Invariant: a parameter that would change the completion and is not supported is refused by name, never ignored. The
sampling parameters are the exception: the policy's own always apply.
"""

import json
import time
import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, StrictBool, StrictInt, StrictStr, ValidationError

from client.errors import InvalidRequest
from trainer.engines.base import Completion
from trainer.gateway.tool_calls import MAX_NESTING, is_shallow, parse_arguments

# Parameters that would change the completion, with the values that are supported.
_SUPPORTED = {
    "n": (None, 1),
    "stop": (None, []),
    "logprobs": (None, False),
    "tool_choice": (None, "auto"),
    "response_format": (None, {"type": "text"}),
}


def _join_text_parts(content: Any) -> Any:
    """Join content parts to one text; null becomes the empty string. Raises ValueError for parts that are not text."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    texts = [part["text"] for part in content if _is_text_part(part)]
    if len(texts) != len(content):
        raise ValueError('only parts of the form {"type": "text", "text": "..."} are supported')
    return "".join(texts)


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _parse_arguments(arguments: Any) -> Any:
    """Parse a string that holds a JSON object, so that whitespace does not matter. Other strings stay unchanged."""
    if isinstance(arguments, str):
        parsed = parse_arguments(arguments)
        return arguments if parsed is None else parsed
    if not is_shallow(arguments):
        raise ValueError(f"arguments may be nested {MAX_NESTING} deep")
    return arguments


class _Function(BaseModel):
    name: StrictStr
    arguments: Annotated[dict | StrictStr, BeforeValidator(_parse_arguments)]


class _ToolCall(BaseModel):
    id: StrictStr | None = None
    type: Literal["function"] = "function"
    function: _Function


class _Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[StrictStr, BeforeValidator(_join_text_parts)] = ""
    reasoning_content: StrictStr | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: StrictStr | None = None
    name: StrictStr | None = None

    def normalized(self) -> dict:
        """The message for the chat template, without empty fields. `developer` is the newer name of `system`."""
        role = "system" if self.role == "developer" else self.role
        fields = self.model_dump(exclude={"role"}, exclude_none=True)
        return {"role": role} | {name: value for name, value in fields.items() if value or name == "content"}


class _Tool(BaseModel):
    type: Literal["function"]
    function: dict


class _StreamOptions(BaseModel):
    include_usage: StrictBool = False


class _Body(BaseModel):
    messages: list[_Message] = Field(min_length=1)
    model: StrictStr | None = None
    tools: list[_Tool] | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    stream: StrictBool | None = None
    stream_options: _StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A validated request: `messages` and `tools` for the chat template; `max_tokens` None: the policy's own limit."""

    messages: list[dict]
    tools: list[dict] | None
    max_tokens: int | None
    stream: bool
    include_usage: bool


def parse_chat_request(body: Any) -> ChatRequest:
    """Validate the JSON value `body`. Raises InvalidRequest with the field's name where it is not supported."""
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object", field="body")
    for field, supported in _SUPPORTED.items():
        if body.get(field) not in supported:
            message = f"{field}: only {json.dumps(supported[1])} is supported, not {body[field]!r}: omit it"
            raise InvalidRequest(message, field=field)
    try:
        parsed = _Body.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"{field}: {first['msg']}", field=field) from None
    limits = [limit for limit in (parsed.max_tokens, parsed.max_completion_tokens) if limit is not None]
    return ChatRequest(
        messages=[message.normalized() for message in parsed.messages],
        tools=body["tools"] if parsed.tools else None,  # unchanged, with unknown keys, for the chat template
        max_tokens=min(limits, default=None),
        stream=bool(parsed.stream),
        include_usage=parsed.stream_options is not None and parsed.stream_options.include_usage,
    )


def normalize_message(message: dict) -> dict:
    """A sampled assistant message in the normalized form of a request's messages."""
    return _Message.model_validate(message).normalized()


def completion_body(model: str, message: dict, completion: Completion, n_prompt_tokens: int) -> dict:
    """The `chat.completion` object of a sampled `message`."""
    is_call = message.get("tool_calls") and completion.finish_reason == "stop"
    finish_reason = "tool_calls" if is_call else completion.finish_reason  # of a turn cut by the limit: length
    n_sampled = len(completion.tokens)
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}],
        "usage": {
            "prompt_tokens": n_prompt_tokens,
            "completion_tokens": n_sampled,
            "total_tokens": n_prompt_tokens + n_sampled,
        },
    }


def stream_chunks(body: dict, include_usage: bool) -> list[dict]:
    """The completion `body` as `chat.completion.chunk` objects: message, finish reason and, if requested, usage."""
    head = {name: body[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    choice = body["choices"][0]
    delta = dict(choice["message"])
    if delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]
    chunks = [
        head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        head | {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
    ]
    if include_usage:
        chunks.append(head | {"choices": [], "usage": body["usage"]})
    return chunks
