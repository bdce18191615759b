"""The rules that any agent server must keep: one function per rule of the contract, its docstring the rule.

Invariant: a check makes its own sessions and tests one thing, so that one fault of a server fails one check. It raises
CheckFailed with the observation, or Inconclusive if the server's state did not allow the check.
"""

from client.conformance.checks import cancelling, creating, ending, model_calls, reading, tokens
from client.conformance.grades import Grade
from client.conformance.server import Check

CHECKS: dict[Check, Grade] = (
    creating.CHECKS | reading.CHECKS | ending.CHECKS | cancelling.CHECKS | model_calls.CHECKS | tokens.CHECKS
)
