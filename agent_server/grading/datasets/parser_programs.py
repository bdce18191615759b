"""Parsers that a row brings as a program: they run in the sandbox after the tests, and their result is printed.

Invariant: no program of a row runs on the server. What is read here can be forged by the code under test.
"""

import json
from typing import Any

START, END = "<<<<< outcomes", ">>>>> outcomes"


def print_result(file: str) -> str:
    """Commands that print a JSON file as the result. `file`: as bash writes it."""
    return f"echo; echo '{START}'; cat {file}; echo; echo '{END}'"


def read_result(log: str) -> Any:
    """The JSON that was printed last; None where there is none."""
    try:
        return json.loads(log.rpartition(START)[2].partition(END)[0])
    except ValueError:
        return None
