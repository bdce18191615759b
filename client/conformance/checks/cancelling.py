"""Checks of POST /sessions/ID/cancel."""

import time

from client.conformance.grades import Grade
from client.conformance.server import POLL_S, Check, Server, describe, expect

CANCEL_S = 2.0  # from cancel to cancelled


def cancel(server: Server) -> None:
    """cancel answers 204: at once after create, while running, repeated, and after the end"""
    done = server.start()
    end = server.wait_ended(done)["status"]
    running = server.start_running_session()
    new = server.start(held=True)  # second, since a server may run one at a time
    for session, when in (
        (new, "just created"),
        (new, "repeated"),
        (running, "running"),
        (running, "repeated"),
        (done, end),
        (done, end),
    ):
        response = server.cancel(session)
        expect(response.status_code == 204, f"{when}: {describe(response)}")
    server.wait_ended(running)
    response = server.cancel(running)
    expect(response.status_code == 204, f"cancelled: {describe(response)}")


def cancel_after_end_changes_nothing(server: Server) -> None:
    """a session that has ended stays as it was when it is cancelled"""
    session = server.start()
    before = server.wait_ended(session)["status"]
    server.cancel(session)
    after = server.get_state(session)["status"]
    expect(after == before, f"{before}, then {after}")


def cancelled_in_time(server: Server) -> None:
    """2 s after cancel the session is cancelled"""
    session = server.start_running_session()
    server.cancel(session)
    deadline = time.monotonic() + CANCEL_S
    while (status := server.get_state(session).get("status")) != "cancelled":
        expect(time.monotonic() < deadline, f"it is {status}")
        time.sleep(POLL_S)


def model_calls_stop(server: Server) -> None:
    """2 s after cancel the model call in flight is given up, and none follows"""
    session = server.start_running_session()
    server.cancel(session)
    deadline = time.monotonic() + CANCEL_S
    while session.model.open_calls:
        expect(time.monotonic() < deadline, "the model call is still open")
        time.sleep(POLL_S)
    calls = len(session.model.calls)
    time.sleep(server.watch_s)
    expect(len(session.model.calls) == calls, f"{len(session.model.calls) - calls} more model calls came")


CHECKS: dict[Check, Grade] = {
    cancel: Grade.REQUIRED,
    cancel_after_end_changes_nothing: Grade.REQUIRED,
    cancelled_in_time: Grade.OURS,
    model_calls_stop: Grade.OURS,
}
