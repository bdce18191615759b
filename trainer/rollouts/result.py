"""A client's output joined with the gateway's trace: a sample, or the failure that it is.

Invariant: no reward ever comes from a failure. A client that did not exit 0 with a finite reward in its output, or whose
trace lacks calls that the agent server counted, yields a StackError and nothing else.
"""

import json
import math
import signal
from dataclasses import dataclass

from client.errors import (
    Cancelled,
    ClientTimeout,
    NoOutput,
    ServerUnreachable,
    SessionFailed,
    StackError,
    TraceIncomplete,
)
from client.wire import EXIT_CODES, EXIT_UNREACHABLE, Status
from trainer.records import Sample, Trace
from trainer.rollouts.process import ClientExit, Session


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """One attempt as it ended: `sample` or `failure`, exactly one of them."""

    session: Session
    exit: ClientExit
    trace: Trace
    seconds: float
    sample: Sample | None
    failure: StackError | None
    alarm: str = ""  # not a failure, yet not as it should be


def to_result(session: Session, exit: ClientExit, trace: Trace, seconds: float, overdue: bool) -> RolloutResult:
    """Decide what an ended client and its trace amount to. Raises nothing."""
    try:
        if overdue:
            raise ClientTimeout(
                f"the client ran for {seconds:.0f} s, longer than rollout.client_timeout_s, and was ended"
            )
        sample, alarm = _sample(session, exit, trace)
    except StackError as failure:
        return RolloutResult(session, exit, trace, seconds, None, failure)
    return RolloutResult(session, exit, trace, seconds, sample, None, alarm)


def _sample(session: Session, exit: ClientExit, trace: Trace) -> tuple[Sample, str]:
    if exit.exit_code != 0:
        raise _failure_of(exit)
    reward = None if exit.output is None else exit.output.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
        raise NoOutput(
            f"the client exited 0 but its output JSON has no finite reward (got {reward!r}): {_end(exit.log)}"
        )
    metadata = exit.output.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    alarm = _compare_calls(trace, metadata.get("n_calls"))
    status = str(metadata.get("exit_status", "unknown"))
    return Sample(session.session_id, session.group_id, float(reward), status, trace, metadata), alarm


def _compare_calls(trace: Trace, counted: object) -> str:
    """Fewer calls captured than counted: TraceIncomplete. More: an alarm (an agent that was cut off while the model
    still answered counts one less). "" where they agree or the server counts none."""
    if not isinstance(counted, int) or counted == trace.n_calls:
        return ""
    message = f"the gateway captured {trace.n_calls} model calls, the agent server counted {counted}"
    if trace.n_calls < counted:
        raise TraceIncomplete(f"{message}: does the agent call another model, or another address?")
    return message


def _failure_of(exit: ClientExit) -> StackError:
    if exit.exit_code == EXIT_UNREACHABLE:
        return ServerUnreachable(f"the client could not reach the agent server: {_end(exit.log)}")
    if exit.exit_code in (EXIT_CODES[Status.CANCELLED], -signal.SIGTERM, -signal.SIGKILL):
        return Cancelled(f"the session was cancelled: {_end(exit.log)}")
    return SessionFailed(f"the client exited {exit.exit_code}: {_end(exit.log)}", _told(_end(exit.log)))


def _told(line: str) -> dict:
    """The JSON object that ends `line`, {} where none does: the client ends its last line with the server's error."""
    try:
        told = json.loads(line[line.index("{") :])
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _end(log: str) -> str:
    return log.splitlines()[-1] if log else "it printed nothing"
