"""JSON body of a request.

Invariant: reading it raises nothing, whatever the bytes.
"""

from typing import Any

from flask import request


def read_json() -> Any:
    """The parsed body; None where it is not JSON."""
    try:
        return request.get_json(force=True, silent=True)
    except RecursionError:  # thousands of brackets
        return None
