"""Cancelled means stopped, in every state: queued, sandbox start, model call, command, semaphore, grading."""

import os
import signal
import time

import pytest

from tests.agent_server.conftest import FILE, FIX, eventually
from tests.scripted_model import Hang

BOUND_S = 2.0  # the contract's: everything of the session is gone this long after the call


def cancel_and_measure(server, session_id: str) -> float:
    """Seconds from the call until no process and no file of the session is left.

    The worker mostly ends itself. One whose signal was lost is killed a second later: Python drops an exception that a
    handler raises within a destructor.
    """
    worker = server.worker(session_id)
    started = time.monotonic()
    server.client.cancel(session_id)
    view = server.client.wait(session_id, timeout_s=30)
    assert (view.status, view.exit_code, view.reward, view.error["code"]) == ("cancelled", 143, None, "cancelled")
    worker = worker or server.worker(session_id)
    eventually(lambda: not server.session_processes(worker), what="worker and sandbox gone")
    eventually(lambda: not list((server.work_dir / "scratch").glob(f"{session_id}*")), what="scratch folder gone")
    return time.monotonic() - started


def test_while_a_model_call_hangs(server, model):
    session = server.create(model, [Hang(60.0)], key="hanging")
    eventually(lambda: "hanging" in model.requests, what="model call in flight")
    assert cancel_and_measure(server, session) < BOUND_S


def test_while_a_command_runs(server, model):
    session = server.create(model, ["(trap '' TERM; setsid sleep 1000) & trap '' TERM; sleep 1000"], key="sleeping")
    eventually(lambda: server.runs(session, "sleep 1000"), what="the command runs")
    assert cancel_and_measure(server, session) < BOUND_S


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4])
def test_at_any_moment_of_the_start(server, model, delay_s):
    """From before the fork to the first command: the delays cover every handover."""
    session = server.create(model, [Hang(60.0)])
    time.sleep(delay_s)
    assert cancel_and_measure(server, session) < BOUND_S


def test_while_grading(server, model):
    # The patch makes the tests hang, so grading is caught in the act.
    session = server.create(model, [f"sed -i '1i import time; time.sleep(1000)' {FILE}"])
    eventually(lambda: server.client.get(session).status == "grading", what="grading")
    eventually(lambda: server.runs(session, "pytest"), what="the tests run")
    assert cancel_and_measure(server, session) < BOUND_S


def test_while_queued_and_then_it_never_runs(own_server, model):
    server = own_server(AGENT_SERVER_TRAIN_CONCURRENCY="1")
    first = server.create(model, [Hang(60.0)], key="holds the slot")
    second = server.create(model, [FIX], key="waits")
    third = server.create(model, [FIX], key="comes after")
    eventually(lambda: "holds the slot" in model.requests)
    assert server.client.get(second).status == "queued"
    server.client.cancel(second)
    assert server.client.get(second).status == "cancelled"
    server.client.cancel(first)
    assert server.client.wait(third, timeout_s=30).reward == 1.0
    assert "waits" not in model.requests


def test_again_and_after_the_end(server, model):
    session = server.create(model, [FIX])
    done = server.client.wait(session, timeout_s=30)
    for _ in range(2):
        server.client.cancel(session)
    assert server.client.get(session) == done


def test_a_worker_that_ignores_the_signal_is_killed(server, model):
    session = server.create(model, [Hang(60.0)], key="stubborn")
    eventually(lambda: "stubborn" in model.requests)
    worker = server.worker(session)
    assert len(server.session_processes(worker)) > 3
    os.kill(worker, signal.SIGSTOP)  # a stopped process receives nothing but SIGKILL
    assert cancel_and_measure(server, session) < BOUND_S


def test_while_waiting_for_a_semaphore(own_server, model):
    """Several workers wait for the only slot; each is cancelled there, and the slot's holder is not disturbed."""
    server = own_server(AGENT_SERVER_GRADINGS="1")
    slow = f"sed -i '1i import time; time.sleep(3)' {FILE}"
    holder = server.create(model, [f"{FIX}\n{slow}"])
    eventually(lambda: server.client.get(holder).status == "grading", what="the holder at its tests")
    waiting = [server.create(model, [FIX]) for _ in range(3)]
    eventually(lambda: all(server.column(session, "waiting_since") for session in waiting), what="the others wait")
    assert max(cancel_and_measure(server, session) for session in waiting) < BOUND_S
    assert server.client.wait(holder, timeout_s=60).reward == 1.0
