"""Tool calls in a model's text: the forms in which chat templates write them, and how they are read back.

`JSON`, of Hermes and Qwen3: <tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>
`XML`, of Qwen3-Coder: <tool_call><function=bash><parameter=command>ls</parameter></function></tool_call>
The form is the one in which the template writes CALL.
Invariant: the calls of a turn are read whole or not at all. Their arguments are JSON that every reader accepts.
"""

import json
import math
import re
import uuid
from collections.abc import Callable
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_NESTING = 64  # of arguments; writers of JSON, pydantic among them, refuse more at depths of their own
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>\s*")
# A value ends at the tag that another parameter or the function's end follows: others may be part of it.
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*(?=<parameter=|</function>)", re.DOTALL)
_FUNCTION_END = re.compile(r"</function>\s*")

# Reads one call after OPEN: name, arguments, and where in the text they end. Raises ValueError.
Reader = Callable[[str, int, list[dict]], tuple[str, dict | str, int]]


def read_calls(text: str, read: Reader, tools: list[dict]) -> tuple[str, list[dict]] | None:
    """The text before the calls, and the calls in OpenAI's format; None where there are none, or one is malformed.

    `read`: of the template's form. The end of the turn stands for the last CLOSE. Text after a call is left out.
    """
    content, opened, _ = text.partition(OPEN)
    position, calls = len(content), []
    while opened and position >= 0:
        try:
            name, arguments, end = read(text, position + len(OPEN), tools)
            if text[end:].strip() and not text.startswith(CLOSE, end):
                return None
            encoded = arguments if isinstance(arguments, str) else _dump(arguments)
            (name + encoded).encode()
        except ValueError:
            return None
        function = {"name": name, "arguments": encoded}
        calls.append({"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function})
        position = text.find(OPEN, end)
    return (content, calls) if calls else None


def read_json(text: str, start: int, tools: list[dict]) -> tuple[str, dict | str, int]:
    """Reader of the form JSON."""
    start += len(text[start:]) - len(text[start:].lstrip())
    try:
        call, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(call, dict) or not isinstance(name := call.get("name"), str):
        raise ValueError("a call must be an object with a name")
    arguments = call.get("arguments")
    if not isinstance(arguments, dict | str):
        raise ValueError("arguments must be an object or its JSON text")
    return name, arguments, end + len(text[end:]) - len(text[end:].lstrip())


def read_xml(text: str, start: int, tools: list[dict]) -> tuple[str, dict | str, int]:
    """Reader of the form XML. A value is text, but JSON where the tool's schema allows no text."""
    if not (function := _FUNCTION.match(text, start)):
        raise ValueError("a call must begin with <function=NAME>")
    values = _without_text(function[1], tools)
    arguments: dict[str, Any] = {}
    position = function.end()
    while parameter := _PARAMETER.match(text, position):
        name, value = parameter[1], parameter[2]
        if name in arguments:
            raise ValueError(f"{name} is given twice")
        arguments[name] = _load(value) if name in values else value
        position = parameter.end()
    if not (end := _FUNCTION_END.match(text, position)):
        raise ValueError("a call must end with </function>")
    return function[1], arguments, end.end()


FORMS = f"""{OPEN}{{"name": "bash", "arguments": {{"command": "ls"}}}}{CLOSE}
{OPEN}<function=bash><parameter=command>ls</parameter></function>{CLOSE}"""
# A conversation from which the template's form is found: a tool, a call of it, and the call's result.
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "-",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
_CALLED = {"name": "bash", "arguments": {"command": "echo 'a' && b\nc"}}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "call00000", "type": "function", "function": _CALLED}],
}
RESULT = {"role": "tool", "content": "-", "tool_call_id": "call00000"}


def find_reader(written: str) -> Reader | None:
    """The reader that finds CALL in what a template wrote for it; None if none does."""
    for read in (read_json, read_xml):
        _, calls = read_calls(written, read, [TOOL]) or ("", [])
        if [parse_arguments(call["function"]["arguments"]) for call in calls] == [_CALLED["arguments"]]:
            return read
    return None


def parse_arguments(text: str) -> dict | None:
    """The object in the JSON text of a call's arguments; None for any other text, or JSON that some readers refuse."""
    try:
        value = _load(text)
        _dump(value)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def is_shallow(value: Any, left: int = MAX_NESTING) -> bool:
    """Whether a JSON value is nested at most MAX_NESTING deep."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return left > 0 and all(is_shallow(each, left - 1) for each in inner)
    return True


def _without_text(function: str, tools: list[dict]) -> set[str]:
    """The parameters of a tool that its schema allows no text for."""
    schemas = [tool["function"].get("parameters") for tool in tools if tool["function"].get("name") == function]
    properties = schemas[0].get("properties") if schemas and isinstance(schemas[0], dict) else None
    found = properties.items() if isinstance(properties, dict) else ()
    kinds = {name: schema["type"] for name, schema in found if isinstance(schema, dict) and schema.get("type")}
    return {name for name, kind in kinds.items() if "string" not in (kind if isinstance(kind, list) else [kind])}


def _load(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _dump(value: Any) -> str:
    """JSON text. Raises ValueError for half a surrogate pair and for deep nesting."""
    if not is_shallow(value):
        raise ValueError(f"nested more than {MAX_NESTING} deep")
    text = json.dumps(value, ensure_ascii=False)
    text.encode()  # UnicodeEncodeError is a ValueError
    return text


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits} is too large")
    return number


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant)
