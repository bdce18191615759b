"""The HTTP client of the model API, and the form of its replies: strings where litellm expects strings.

A policy can write a tool call whose arguments are no text, or half a surrogate pair, which no request can carry back.
Invariant: nothing that a policy writes makes a reply unreadable. A reply that is no completion stays as it is.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx

MAX_NESTING = 64  # of a call's arguments
CUT_CHARACTERS = 64  # of arguments that readers of JSON refuse; the beginning of an object is no JSON


class ReadableReplies(httpx.Client):
    """A client whose successful replies are readable."""

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """See httpx.Client.send. The reply is read to its end."""
        response = super().send(request, **options)
        if not response.is_success:
            return response
        headers = {"content-type": response.headers.get("content-type", "")}
        content = readable(response.read())
        return httpx.Response(response.status_code, headers=headers, content=content, request=response.request)


def readable(data: bytes) -> bytes:
    """The body of a completion without half surrogate pairs, and with names and arguments of calls as strings.

    What is no JSON object stays so, and becomes a format error.
    """
    try:
        body = json.loads(data)
        for function in _called_functions(body):
            function["name"] = _as_text(function.get("name"))
            function["arguments"] = _refused_as_text(_as_text(function.get("arguments")))
        return json.dumps(body, ensure_ascii=False).encode(errors="replace")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return data  # no completion


def _called_functions(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for choice in body["choices"]:
        for call in choice["message"].get("tool_calls") or ():
            yield call["function"]


def _refused_as_text(arguments: str) -> str:
    """Arguments that readers answer with a JSONDecodeError where they refuse them: litellm handles no other error."""
    try:
        if _is_shallow(json.loads(arguments), MAX_NESTING):
            return arguments
    except json.JSONDecodeError:
        return arguments
    except (ValueError, RecursionError):  # an integer of more digits than Python converts, or nesting
        pass
    return arguments[:CUT_CHARACTERS]


def _is_shallow(value: Any, left: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left > 0 and all(_is_shallow(each, left - 1) for each in inner)


def _as_text(value: Any) -> str:
    """A string without half surrogate pairs, which are escaped as in JSON; the JSON text of any other value."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode(errors="backslashreplace").decode()
