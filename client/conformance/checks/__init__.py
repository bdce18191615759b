"""The rules that any agent server must keep: one function per rule of the contract, its docstring the rule.

Invariant: a check makes its own sessions and tests one thing, so that one fault of a server fails one check. It raises
CheckFailed with the observation, or Inconclusive if the server's state did not allow the check.
"""

from collections.abc import Callable

from client.conformance.checks import cancelling, creating, ending, model_calls, reading, tokens
from client.conformance.server import Server

CHECKS: tuple[Callable[[Server], None], ...] = (
    *creating.CHECKS,
    *reading.CHECKS,
    *ending.CHECKS,
    *cancelling.CHECKS,
    *model_calls.CHECKS,
    *tokens.CHECKS,
)
