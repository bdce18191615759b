"""A worker's process: runs its session and records how it ended.

The worker writes states and result into the store itself, so it needs no other process to finish. SIGTERM cancels the
session: the code unwinds, sandboxes close on the way, and the end is recorded.
Invariant: exactly one terminal record, and no process of the session outlives the worker.
"""

import logging
import os
import shutil
from dataclasses import asdict
from typing import Any

from agent_server.agents.base import AgentResult
from agent_server.config import Settings
from agent_server.grading import reward
from agent_server.grading.grade import Grade
from agent_server.sandboxes import own_memory
from agent_server.sandboxes.processes import become_subreaper, read_process
from agent_server.store.sessions import Fenced
from agent_server.store.store import Store
from agent_server.worker import signals
from agent_server.worker.costs import SessionCosts
from agent_server.worker.job import MAX_ATTEMPTS, Job
from agent_server.worker.notification import notify
from agent_server.worker.session import SessionRunner
from agent_server.worker.store_retry import retry_on_full_disk
from client.errors import Cancelled, OutOfMemory, StackError
from client.redaction import Redaction
from client.wire import Status

log = logging.getLogger(__name__)


def run(job: Job, settings: Settings) -> None:
    """Run the session and record its end. Returns normally in every case that could be recorded."""
    shared = own_memory.read_status("VmRSS")
    own_memory.limit_growth(settings.worker_memory_mib << 20)
    become_subreaper()
    signals.raise_signals()
    store = Store(settings.work_dir)
    costs = SessionCosts()
    scratch = settings.scratch_dir / job.attempt_id
    try:
        end = _run_session(job, settings, store, costs)
    except Fenced as fenced:
        log.warning("%s", fenced)
        shutil.rmtree(scratch, ignore_errors=True)
        return
    except (signals.CancelSignal, Cancelled):
        end = {"status": Status.CANCELLED, "error": Cancelled("cancelled while running").as_dict()}
    except StackError as failure:
        shutil.rmtree(scratch, ignore_errors=True)
        if failure.transient and store.requeue(job.session_id, failure, attempt=job.attempt, max_attempts=MAX_ATTEMPTS):
            return notify(settings.notify_address)
        end = _failed(failure)
    except MemoryError as failure:
        end = _failed(OutOfMemory(f"the worker found no memory ({failure}); lower the limits or add memory"))
    except Exception as unexpected:
        log.exception("session %s", job.session_id)
        text = Redaction(job.api_key)(f"{type(unexpected).__name__}: {unexpected}")  # whole: the cut may part the key
        end = _failed(StackError(text[:1000]))
    signals.ignore_cancel()
    shutil.rmtree(scratch, ignore_errors=True)
    costs.add_worker(own_memory.read_status("VmHWM") - shared)
    try:
        retry_on_full_disk(lambda: store.finish(job.session_id, job.attempt, **end, **asdict(costs)))
    except Fenced as fenced:
        log.warning("%s", fenced)
    store.close()
    notify(settings.notify_address)


def _run_session(job: Job, settings: Settings, store: Store, costs: SessionCosts) -> dict[str, Any]:
    """The record of a completed session. Raises Fenced, CancelSignal, StackError."""
    process = read_process(os.getpid())
    assert process is not None  # /proc has the process that reads it
    store.register_worker(job.session_id, job.attempt, process.pid, process.start_ticks)
    submission, grade = SessionRunner(job, settings, store, costs).run()
    result = submission.result
    return {
        "status": Status.COMPLETED,
        "agent_exit_status": result.exit_status,
        "submission": result.submission,
        "n_calls": result.n_calls,
        "reward": _reward(grade, result, settings),
        "grade": grade.as_dict() | {"left_out": submission.left_out},
    }


def _failed(failure: StackError) -> dict[str, Any]:
    return {"status": Status.FAILED, "error": failure.as_dict()}


def _reward(grade: Grade, result: AgentResult, settings: Settings) -> float:
    """By the server's mode or its reward command, plus the penalty of the agent's exit status."""
    earned = grade.given_reward
    if earned is None:
        earned = reward.MODES[settings.reward](grade.fail_to_pass, grade.pass_to_pass, grade.resolved)
    return reward.penalized(earned, result.exit_status, settings.penalties)
