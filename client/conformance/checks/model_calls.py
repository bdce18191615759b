"""Checks of the agent's side: model calls and the rows of a group."""

from client.conformance.model import COMPLETIONS
from client.conformance.server import Inconclusive, Server, expect


def model_call(server: Server) -> None:
    """the agent calls base_url + /v1/chat/completions, with the api_key as bearer token"""
    session = server.start_running_session()
    call, expected = session.model.calls[0], f"/{session.model.name}{COMPLETIONS}"
    expect(call.path == expected, f"it called {call.path}, not {expected}")
    expect(
        call.authorization == f"Bearer {session.body['api_key']}", f"Authorization: {call.authorization or '(none)'}"
    )


def group(server: Server) -> None:
    """the samples of a group work on one row"""
    first = server.start()
    second = server.start(group_id=first.body["group_id"])
    rows = [server.wait_ended(session).get("task_id") for session in (first, second)]
    if None in rows:
        raise Inconclusive("the response has no task_id")
    expect(rows[0] == rows[1], f"{rows[0]} and {rows[1]}")


CHECKS = (model_call, group)
