"""What any agent server must do: one function a promise of the contract, its docstring the promise.

Invariant: a check makes its own sessions and asks for one thing, so that one fault of a server fails one check. It raises Fails with what
was seen instead, or Untested where the server gave it no occasion to look.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import requests

from client.conformance.model import COMPLETIONS
from client.conformance.server import POLL_S, Server, Untested, expect, is_terminal, json_of, told
from client.wire import EXIT_CODES, SessionRequest, Status

CANCEL_S = 2.0  # from cancel to cancelled
AT_ONCE_S = 1.0  # what "at once" and "promptly" mean here


# --- create -------------------------------------------------------------------------------------------------------------


def create(server: Server) -> None:
    """POST /sessions answers 200 with a session_id and a status that is not terminal"""
    answer = server.post(server.body(held=True))
    body = json_of(answer)
    expect(answer.status_code == 200, told(answer))
    expect(isinstance(body.get("session_id"), str) and body["session_id"] != "", told(answer))
    expect(body.get("status") in ("queued", "running", "grading"), told(answer))


def create_again(server: Server) -> None:
    """the same session_id again, while it runs, is the same session"""
    session = server.running()
    again = server.post(session.body)
    expect(again.ok and json_of(again).get("session_id") == session.id, f"first {session.id}, then {told(again)}")


def create_at_once(server: Server) -> None:
    """the same session_id eight times at once is one session"""
    body = server.body(held=True)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(server.post, [body] * 8))
    ids = {json_of(answer).get("session_id") for answer in answers}
    expect(len(ids) == 1 and None not in ids, f"{len(ids)} sessions: {', '.join(map(str, ids))}")


def create_after_end(server: Server) -> None:
    """the same session_id again, after its end, is the same session, and nothing runs again"""
    session = server.start()
    server.ended(session)
    calls = len(session.talk.calls)
    again = server.post(session.body)
    expect(again.ok and json_of(again).get("session_id") == session.id, f"first {session.id}, then {told(again)}")
    time.sleep(server.look_s / 2)
    expect(len(session.talk.calls) == calls, "its agent called the model again")


def unknown_fields(server: Server) -> None:
    """fields that the server does not know are ignored, and metadata may hold anything"""
    answer = server.post(server.body(held=True, conformance_field={"new": True}, metadata={"deep": [1, {"a": None}]}))
    expect(answer.ok, told(answer))


def bad_json(server: Server) -> None:
    """a body that is no JSON object is 400"""
    for data in (b"{", b"[]", b""):
        answer = server.call("POST", "/sessions", data=data)
        expect(answer.status_code == 400, f"{data!r}: {told(answer)}")


def bad_fields(server: Server) -> None:
    """a missing field, one of a wrong type, and an unknown mode are 400"""
    for field, body in _bad_bodies(server):
        answer = server.post(body)
        expect(answer.status_code == 400, f"{field}={body.get(field, '(missing)')!r}: {told(answer)}")


def field_named(server: Server) -> None:
    """such an answer names the field"""
    for field, body in _bad_bodies(server):
        answer = server.post(body)
        if answer.status_code == 400:
            expect(field in answer.text, f"{field}={body.get(field, '(missing)')!r}: {told(answer)}")


def _bad_bodies(server: Server) -> list[tuple[str, dict[str, Any]]]:
    good = server.body(held=True)
    required = [name for name, field in SessionRequest.model_fields.items() if field.is_required()]
    missing = [(name, {other: value for other, value in good.items() if other != name}) for name in required]
    return [
        *missing,
        ("session_id", good | {"session_id": 3}),
        ("metadata", good | {"metadata": []}),
        ("mode", good | {"mode": "exam"}),
    ]


# --- get ----------------------------------------------------------------------------------------------------------------


def get_fields(server: Server) -> None:
    """GET answers session_id, client_session_id, status, exit_code and error; no reward while it runs"""
    session = server.running()
    view = server.view(session)
    expect(view.get("session_id") == session.id, f"session_id={view.get('session_id')!r}, asked for {session.id!r}")
    expect(
        view.get("client_session_id") == session.body["session_id"],
        f"client_session_id={view.get('client_session_id')!r}",
    )
    expect(view.get("status") in {status.value for status in Status}, f"status={view.get('status')!r}")
    expect("exit_code" in view and "error" in view, f"it has only {', '.join(view)}")
    expect(view.get("reward") is None, f"reward={view.get('reward')!r} while {view.get('status')}")


def no_wait(server: Server) -> None:
    """without ?wait GET answers at once"""
    session = server.running()
    started = time.monotonic()
    server.view(session)
    expect(time.monotonic() - started < AT_ONCE_S, f"it took {time.monotonic() - started:.1f} s")


def wait(server: Server) -> None:
    """?wait=SECONDS holds the answer while the session runs, and answers promptly at its end"""
    session = server.running()
    started = time.monotonic()
    answer = server.call("GET", f"/sessions/{session.id}", params={"wait": f"{server.look_s:g}"})
    held_s = time.monotonic() - started
    expect(answer.status_code == 200, told(answer))
    expect(
        held_s > server.look_s * 0.9,
        f"wait={server.look_s:g} was answered after {held_s:.2f} s, while it was {json_of(answer).get('status')}",
    )
    expect(held_s < server.look_s + AT_ONCE_S, f"wait={server.look_s:g} was answered after {held_s:.2f} s")
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(
            _timed,
            lambda: server.call("GET", f"/sessions/{session.id}", params={"wait": "3600"}, timeout_s=server.patience_s),
        )
        session.talk.released.set()
        server.ended(session)
        end = time.monotonic()
        answered, answer = asked.result()
    expect(is_terminal(json_of(answer)), f"wait=3600 was answered before the end: {told(answer)}")
    expect(answered < end + AT_ONCE_S, f"it was answered {answered - end:.1f} s after the session had ended")


def _timed(call: Callable[[], requests.Response]) -> tuple[float, requests.Response]:
    answer = call()
    return time.monotonic(), answer


def terminal_repeats(server: Server) -> None:
    """a terminal answer is repeatable and identical"""
    session = server.start()
    first = server.ended(session)
    for _ in range(2):
        time.sleep(server.look_s / 2)
        again = server.view(session)
        changed = [name for name in {*first, *again} if first.get(name) != again.get(name)]
        expect(not changed, f"changed: {', '.join(changed)}")


def unknown_session(server: Server) -> None:
    """an unknown session is 404, for GET and for cancel"""
    for method, path in (("GET", "/sessions/conformance-none"), ("POST", "/sessions/conformance-none/cancel")):
        answer = server.call(method, path)
        expect(answer.status_code == 404, f"{method} {path}: {told(answer)}")


# --- ends ---------------------------------------------------------------------------------------------------------------


def completed_answer(server: Server) -> None:
    """completed has a number as reward, exit_code 0, agent_exit_status, submission and n_calls"""
    view = server.ended(server.start())
    if view["status"] != "completed":
        raise Untested(f"a session whose agent submits at once ended as {view['status']}: {view.get('error')}")
    reward = view.get("reward")
    expect(isinstance(reward, (int, float)) and not isinstance(reward, bool), f"reward={reward!r}")
    expect(view.get("exit_code") == EXIT_CODES[Status.COMPLETED], f"exit_code={view.get('exit_code')!r}")
    missing = [name for name in ("agent_exit_status", "submission", "n_calls") if view.get(name) is None]
    expect(not missing, f"without {', '.join(missing)}")


def completes(server: Server) -> None:
    """a session whose agent submits is completed"""
    view = server.ended(server.start())
    expect(view["status"] == "completed", f"{view['status']}: {view.get('error')}")


def unreachable_model(server: Server) -> None:
    """a session whose model cannot be reached is failed, not a reward of 0"""
    view = server.without_model
    expect(view["status"] == "failed", f"{view['status']}, reward={view.get('reward')!r}")


def failed_answer(server: Server) -> None:
    """failed has no reward, exit_code 1, and an error with boundary, code and message"""
    view = server.without_model
    if view["status"] != "failed":
        raise Untested("no session failed")
    _expect_no_result(view, Status.FAILED)
    missing = [name for name in ("boundary", "code", "message") if not (view.get("error") or {}).get(name)]
    expect(not missing, f"its error is without {', '.join(missing)}")


def cancelled_answer(server: Server) -> None:
    """cancelled has no reward and exit_code 143"""
    session = server.running()
    server.cancel(session)
    view = server.ended(session)
    if view["status"] != "cancelled":
        raise Untested(f"a cancelled session ended as {view['status']}")
    _expect_no_result(view, Status.CANCELLED)


def _expect_no_result(view: dict[str, Any], status: Status) -> None:
    expect(view.get("reward") is None, f"reward={view.get('reward')!r}")
    expect(view.get("exit_code") == EXIT_CODES[status], f"exit_code={view.get('exit_code')!r}")


# --- cancel -------------------------------------------------------------------------------------------------------------


def cancel(server: Server) -> None:
    """cancel answers 204: at once after create, while running, repeated, and after the end"""
    done = server.start()
    end = server.ended(done)["status"]
    running, new = server.running(), server.start(held=True)  # in this order, since a server may run one at a time
    for session, when in (
        (new, "just created"),
        (new, "repeated"),
        (running, "running"),
        (running, "repeated"),
        (done, end),
        (done, end),
    ):
        answer = server.cancel(session)
        expect(answer.status_code == 204, f"{when}: {told(answer)}")
    server.ended(running)
    answer = server.cancel(running)
    expect(answer.status_code == 204, f"cancelled: {told(answer)}")


def cancel_leaves_the_end(server: Server) -> None:
    """a session that has ended stays as it was when it is cancelled"""
    session = server.start()
    before = server.ended(session)["status"]
    server.cancel(session)
    after = server.view(session)["status"]
    expect(after == before, f"{before}, then {after}")


def cancelled_in_time(server: Server) -> None:
    """2 s after cancel the session is cancelled"""
    session = server.running()
    server.cancel(session)
    deadline = time.monotonic() + CANCEL_S
    while (status := server.view(session).get("status")) != "cancelled":
        expect(time.monotonic() < deadline, f"it is {status}")
        time.sleep(POLL_S)


def model_calls_stop(server: Server) -> None:
    """2 s after cancel the model call in flight is given up, and none follows"""
    session = server.running()
    server.cancel(session)
    deadline = time.monotonic() + CANCEL_S
    while session.talk.open_calls:
        expect(time.monotonic() < deadline, "the model call is still open")
        time.sleep(POLL_S)
    calls = len(session.talk.calls)
    time.sleep(server.look_s)
    expect(len(session.talk.calls) == calls, f"{len(session.talk.calls) - calls} more model calls came")


# --- the agent's side ---------------------------------------------------------------------------------------------------


def model_call(server: Server) -> None:
    """the agent calls base_url + /v1/chat/completions, with the api_key as bearer token"""
    session = server.running()
    call, wanted = session.talk.calls[0], f"/{session.talk.name}{COMPLETIONS}"
    expect(call.path == wanted, f"it called {call.path}, not {wanted}")
    expect(
        call.authorization == f"Bearer {session.body['api_key']}", f"Authorization: {call.authorization or '(none)'}"
    )


def group(server: Server) -> None:
    """the samples of a group work on one row"""
    first = server.start()
    second = server.start(group_id=first.body["group_id"])
    rows = [server.ended(session).get("task_id") for session in (first, second)]
    if None in rows:
        raise Untested("the answer tells no task_id")
    expect(rows[0] == rows[1], f"{rows[0]} and {rows[1]}")


# --- with a token -------------------------------------------------------------------------------------------------------


def token_wanted(server: Server) -> None:
    """without the token, or with a wrong one, every call is 401"""
    if not server.token:
        raise Untested("no --token was given")
    for token in ("", f"{server.token}x"):
        for method, path in (
            ("POST", "/sessions"),
            ("GET", "/sessions/conformance-none"),
            ("POST", "/sessions/conformance-none/cancel"),
        ):
            answer = server.call(method, path, token=token, json={} if method == "POST" else None)
            expect(answer.status_code == 401, f"{method} {path}: {told(answer)}")


def health_open(server: Server) -> None:
    """health needs no token"""
    if not server.token:
        raise Untested("no --token was given")
    answer = server.call("GET", "/healthz", token="")
    if answer.status_code == 404:
        raise Untested("there is no /healthz")
    expect(answer.status_code not in (401, 403), told(answer))


CHECKS: tuple[Callable[[Server], None], ...] = (
    create, create_again, create_at_once, create_after_end, unknown_fields, bad_json, bad_fields, field_named,
    get_fields, no_wait, wait, terminal_repeats, unknown_session,
    completes, completed_answer, unreachable_model, failed_answer, cancelled_answer,
    cancel, cancel_leaves_the_end, cancelled_in_time, model_calls_stop,
    model_call, group, token_wanted, health_open,
)  # fmt: skip
