"""The JSON body of a request. Invariant: whatever was sent, reading it raises nothing."""

from typing import Any

from flask import request


def read_json() -> Any:
    """The body, None where it is no JSON."""
    try:
        return request.get_json(force=True, silent=True)
    except RecursionError:  # thousands of brackets
        return None
