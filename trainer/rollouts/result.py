"""Classifies ended clients: client output and gateway trace in, a sample or a typed failure out.

Invariant: a failure never carries a reward. A client that did not exit 0 with a finite reward in its output, or whose
trace lacks calls that the agent server counted, yields a StackError and no sample.
"""

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
from trainer.rollouts.process import ClientExit, ClientSession


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """The result of one session: exactly one of `sample` and `failure`. `seconds`: from launch to exit."""

    session: ClientSession
    exit: ClientExit
    trace: Trace
    seconds: float
    sample: Sample | None
    failure: StackError | None
    alarm: str = ""  # an anomaly that is no failure


def to_result(session: ClientSession, exit: ClientExit, trace: Trace, seconds: float, overdue: bool) -> RolloutResult:
    """Classify an ended client. `overdue`: the trainer terminated it at its time limit. Raises nothing."""
    try:
        if overdue:
            raise ClientTimeout(
                f"a client may run for rollout.client_timeout_s; this one was ended after {seconds:.0f} s"
            )
        sample, alarm = _sample(session, exit, trace)
    except StackError as failure:
        return RolloutResult(session, exit, trace, seconds, None, failure)
    return RolloutResult(session, exit, trace, seconds, sample, None, alarm)


def _sample(session: ClientSession, exit: ClientExit, trace: Trace) -> tuple[Sample, str]:
    if exit.exit_code != 0:
        raise _classify_failure(exit)
    output = exit.output or {}
    reward = output.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
        raise NoOutput(
            f"a client that exits 0 must write a finite reward; its output JSON has {reward!r}: {_reason(exit)}"
        )
    metadata = output.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    alarm = _compare_calls(trace, metadata.get("n_calls"))
    status = str(metadata.get("exit_status", "unknown"))
    return Sample(session.session_id, session.group_id, float(reward), status, trace, metadata), alarm


def _compare_calls(trace: Trace, counted: object) -> str:
    """The alarm for calls beyond those counted; "" where the counts agree or the server reports none.

    More calls captured than counted is possible: an agent that is cut off during a call does not count it.
    Raises TraceIncomplete for fewer calls than counted.
    """
    if not isinstance(counted, int) or counted == trace.n_calls:
        return ""
    message = f"the gateway captured {trace.n_calls} model calls, the agent server counted {counted}"
    if trace.n_calls < counted:
        raise TraceIncomplete(f"{message}; check that the agent calls only this model at this address")
    return message


def _classify_failure(exit: ClientExit) -> StackError:
    """The failure of a client that did not exit 0: its class by the exit code, its reason by the error file."""
    if exit.exit_code == EXIT_UNREACHABLE:
        return ServerUnreachable(f"the client could not reach the agent server: {_reason(exit)}")
    if exit.exit_code in (EXIT_CODES[Status.CANCELLED], -signal.SIGTERM, -signal.SIGKILL):
        return Cancelled(f"the session was cancelled: {_reason(exit)}")
    return SessionFailed(
        f"the client exited {exit.exit_code}: {_reason(exit)}", exit.error.model_dump() if exit.error else {}
    )


def _reason(exit: ClientExit) -> str:
    """The message of the error file; without one, the last line of the log."""
    if exit.error:
        return exit.error.message
    return exit.log.splitlines()[-1] if exit.log else "it printed nothing"
