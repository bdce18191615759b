"""Checks of GET /sessions/ID: fields, long polls, repeated reads."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import requests

from client.conformance.grades import Grade
from client.conformance.server import Check, Server, describe, expect, is_terminal, read_json
from client.wire import Status

AT_ONCE_S = 1.0  # limit for "at once" and "promptly"


def get_fields(server: Server) -> None:
    """GET answers session_id, client_session_id, status, exit_code and error; no reward while it runs"""
    session = server.start_running_session()
    view = server.get_state(session)
    expect(view.get("session_id") == session.id, f"session_id={view.get('session_id')!r}, expected {session.id!r}")
    expect(
        view.get("client_session_id") == session.body["session_id"],
        f"client_session_id={view.get('client_session_id')!r}",
    )
    expect(view.get("status") in {status.value for status in Status}, f"status={view.get('status')!r}")
    expect("exit_code" in view and "error" in view, f"it has only {', '.join(view)}")
    expect(view.get("reward") is None, f"reward={view.get('reward')!r} while {view.get('status')}")


def no_wait(server: Server) -> None:
    """without ?wait GET answers at once"""
    session = server.start_running_session()
    started = time.monotonic()
    server.get_state(session)
    expect(time.monotonic() - started < AT_ONCE_S, f"it took {time.monotonic() - started:.1f} s")


def wait(server: Server) -> None:
    """?wait=SECONDS holds the response while the session runs, and answers promptly at its end"""
    session = server.start_running_session()
    started = time.monotonic()
    response = server.call("GET", session.path, params={"wait": f"{server.watch_s:g}"})
    held_s = time.monotonic() - started
    expect(response.status_code == 200, describe(response))
    expect(
        held_s > server.watch_s * 0.9,
        f"wait={server.watch_s:g} was answered after {held_s:.2f} s, while it was {read_json(response).get('status')}",
    )
    expect(held_s < server.watch_s + AT_ONCE_S, f"wait={server.watch_s:g} was answered after {held_s:.2f} s")
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(
            _timed,
            lambda: server.call("GET", session.path, params={"wait": "3600"}, timeout_s=server.session_timeout_s),
        )
        session.model.released.set()
        server.wait_ended(session)
        end = time.monotonic()
        answered_at, response = call.result()
    expect(is_terminal(read_json(response)), f"wait=3600 was answered before the end: {describe(response)}")
    expect(answered_at < end + AT_ONCE_S, f"it was answered {answered_at - end:.1f} s after the session had ended")


def _timed(call: Callable[[], requests.Response]) -> tuple[float, requests.Response]:
    response = call()
    return time.monotonic(), response


def terminal_repeats(server: Server) -> None:
    """a terminal response is repeatable and identical"""
    session = server.start()
    first = server.wait_ended(session)
    for _ in range(2):
        time.sleep(server.watch_s / 2)
        again = server.get_state(session)
        changed = [name for name in {*first, *again} if first.get(name) != again.get(name)]
        expect(not changed, f"changed: {', '.join(changed)}")


def unknown_session(server: Server) -> None:
    """an unknown session is 404, for GET and for cancel"""
    for method, path in (("GET", "/sessions/conformance-none"), ("POST", "/sessions/conformance-none/cancel")):
        response = server.call(method, path)
        expect(response.status_code == 404, f"{method} {path}: {describe(response)}")


CHECKS: dict[Check, Grade] = {
    get_fields: Grade.RELAX,
    no_wait: Grade.REQUIRED,
    wait: Grade.OURS,
    terminal_repeats: Grade.REQUIRED,
    unknown_session: Grade.REQUIRED,
}
