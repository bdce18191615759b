"""Checks of POST /sessions: new sessions, repeated ones, bad bodies."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from client.conformance.grades import Grade
from client.conformance.server import Check, Server, describe, expect, read_json
from client.wire import SessionRequest


def create(server: Server) -> None:
    """POST /sessions answers 200 with a session_id and a status that is not terminal"""
    response = server.post(server.body(held=True))
    body = read_json(response)
    expect(response.status_code == 200, describe(response))
    expect(isinstance(body.get("session_id"), str) and body["session_id"] != "", describe(response))
    expect(body.get("status") in ("queued", "running", "grading"), describe(response))


def create_again(server: Server) -> None:
    """the same session_id again, while it runs, is the same session"""
    session = server.start_running_session()
    again = server.post(session.body)
    expect(again.ok and read_json(again).get("session_id") == session.id, f"first {session.id}, then {describe(again)}")


def create_at_once(server: Server) -> None:
    """the same session_id eight times at once is one session"""
    body = server.body(held=True)
    with ThreadPoolExecutor(8) as threads:
        responses = list(threads.map(server.post, [body] * 8))
    ids = {read_json(response).get("session_id") for response in responses}
    expect(len(ids) == 1 and None not in ids, f"{len(ids)} sessions: {', '.join(map(str, ids))}")


def create_after_end(server: Server) -> None:
    """the same session_id again, after its end, is the same session, and nothing runs again"""
    session = server.start()
    server.wait_ended(session)
    calls = len(session.model.calls)
    again = server.post(session.body)
    expect(again.ok and read_json(again).get("session_id") == session.id, f"first {session.id}, then {describe(again)}")
    time.sleep(server.watch_s / 2)
    expect(len(session.model.calls) == calls, "its agent called the model again")


def create_differently(server: Server) -> None:
    """the same session_id with another group_id, mode, base_url or api_key is 409, and names the field"""
    session = server.start(held=True)
    other = {"group_id": "conformance-other", "mode": "eval", "base_url": "http://127.0.0.1:9", "api_key": "other"}
    for field, value in other.items():
        response = server.post(session.body | {field: value})
        expect(response.status_code == 409 and field in response.text, f"another {field}: {describe(response)}")


def unknown_fields(server: Server) -> None:
    """fields that the server does not know are ignored, and metadata may hold anything"""
    response = server.post(server.body(held=True, conformance_field={"new": True}, metadata={"deep": [1, {"a": None}]}))
    expect(response.ok, describe(response))


def bad_json(server: Server) -> None:
    """a body that is no JSON object is 400"""
    for data in (b"{", b"[]", b""):
        response = server.call("POST", "/sessions", data=data)
        expect(response.status_code == 400, f"{data!r}: {describe(response)}")


def missing_fields(server: Server) -> None:
    """a missing field and an unknown mode are 400"""
    _expect_refused(server, _incomplete_bodies(server))


def wrong_types(server: Server) -> None:
    """a field of a wrong type is 400"""
    _expect_refused(server, _bodies_of_wrong_types(server))


def field_named(server: Server) -> None:
    """a 400 for a bad field names the field"""
    for field, body in (*_incomplete_bodies(server), *_bodies_of_wrong_types(server)):
        response = server.post(body)
        if response.status_code == 400:
            expect(field in response.text, f"{field}={body.get(field, '(missing)')!r}: {describe(response)}")


def _expect_refused(server: Server, bodies: list[tuple[str, dict[str, Any]]]) -> None:
    for field, body in bodies:
        response = server.post(body)
        expect(response.status_code == 400, f"{field}={body.get(field, '(missing)')!r}: {describe(response)}")


def _incomplete_bodies(server: Server) -> list[tuple[str, dict[str, Any]]]:
    good = server.body(held=True)
    required = [name for name, field in SessionRequest.model_fields.items() if field.is_required()]
    missing = [(name, {other: value for other, value in good.items() if other != name}) for name in required]
    return [*missing, ("mode", good | {"mode": "exam"})]


def _bodies_of_wrong_types(server: Server) -> list[tuple[str, dict[str, Any]]]:
    good = server.body(held=True)
    return [("session_id", good | {"session_id": 3}), ("metadata", good | {"metadata": []})]


CHECKS: dict[Check, Grade] = {
    create: Grade.REQUIRED,
    create_again: Grade.OURS,
    create_at_once: Grade.OURS,
    create_after_end: Grade.OURS,
    create_differently: Grade.OURS,
    unknown_fields: Grade.REQUIRED,
    bad_json: Grade.RELAX,
    missing_fields: Grade.RELAX,
    wrong_types: Grade.OURS,
    field_named: Grade.OURS,
}
