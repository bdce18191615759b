"""Checks of terminal sessions: completed, failed, cancelled."""

from typing import Any

from client.conformance.grades import Grade
from client.conformance.server import Check, Inconclusive, Server, expect
from client.wire import EXIT_CODES, Status


def completed_fields(server: Server) -> None:
    """completed has a number as reward, exit_code 0, agent_exit_status, submission and n_calls"""
    view = server.wait_ended(server.start())
    if view["status"] != "completed":
        raise Inconclusive(f"a session whose agent submits at once ended as {view['status']}: {view.get('error')}")
    reward = view.get("reward")
    expect(isinstance(reward, (int, float)) and not isinstance(reward, bool), f"reward={reward!r}")
    expect(view.get("exit_code") == EXIT_CODES[Status.COMPLETED], f"exit_code={view.get('exit_code')!r}")
    missing = [name for name in ("agent_exit_status", "submission", "n_calls") if view.get(name) is None]
    expect(not missing, f"without {', '.join(missing)}")


def completes(server: Server) -> None:
    """a session whose agent submits is completed"""
    view = server.wait_ended(server.start())
    expect(view["status"] == "completed", f"{view['status']}: {view.get('error')}")


def unreachable_model(server: Server) -> None:
    """a session whose model cannot be reached is failed, not a reward of 0"""
    view = server.end_without_model
    expect(view["status"] == "failed", f"{view['status']}, reward={view.get('reward')!r}")


def failed_fields(server: Server) -> None:
    """failed has no reward, exit_code 1, and an error"""
    view = _failed(server)
    _expect_no_result(view, Status.FAILED)
    expect(bool(view.get("error")), f"error={view.get('error')!r}")


def error_object(server: Server) -> None:
    """the error of a failed session is an object with boundary, code and message"""
    error = _failed(server).get("error")
    found = error if isinstance(error, dict) else {}
    missing = [name for name in ("boundary", "code", "message") if not found.get(name)]
    expect(not missing, f"without {', '.join(missing)}: error={error!r}")


def cancelled_fields(server: Server) -> None:
    """cancelled has no reward and exit_code 143"""
    session = server.start_running_session()
    server.cancel(session)
    view = server.wait_ended(session)
    if view["status"] != "cancelled":
        raise Inconclusive(f"a cancelled session ended as {view['status']}")
    _expect_no_result(view, Status.CANCELLED)


def _failed(server: Server) -> dict[str, Any]:
    view = server.end_without_model
    if view["status"] != "failed":
        raise Inconclusive("no session failed")
    return view


def _expect_no_result(view: dict[str, Any], status: Status) -> None:
    expect(view.get("reward") is None, f"reward={view.get('reward')!r}")
    expect(view.get("exit_code") == EXIT_CODES[status], f"exit_code={view.get('exit_code')!r}")


CHECKS: dict[Check, Grade] = {
    completes: Grade.REQUIRED,
    completed_fields: Grade.REQUIRED,
    unreachable_model: Grade.REQUIRED,
    failed_fields: Grade.REQUIRED,
    error_object: Grade.OURS,
    cancelled_fields: Grade.REQUIRED,
}
