"""Checks of the agent's side: model calls and the rows of a group."""

from client.conformance.grades import Grade
from client.conformance.model import COMPLETIONS
from client.conformance.server import Check, Inconclusive, Server, expect


def model_call(server: Server) -> None:
    """the agent calls base_url + /v1/chat/completions or /chat/completions, with the api_key as bearer token"""
    session = server.start_running_session()
    call, paths = (
        session.model.calls[0],
        [f"/{session.model.name}{path}" for path in (COMPLETIONS, "/chat/completions")],
    )
    expect(call.path in paths, f"it called {call.path}, not {' or '.join(paths)}")
    expect(
        call.authorization == f"Bearer {session.body['api_key']}", f"Authorization: {call.authorization or '(none)'}"
    )


def model_path(server: Server) -> None:
    """the agent calls base_url + /v1/chat/completions"""
    session = server.start_running_session()
    path = session.model.calls[0].path
    expect(path.endswith(COMPLETIONS), f"it called {path}")


def key_hidden(server: Server) -> None:
    """a session_id that is the key, too, as Relax's clients send it, is in no answer"""
    key = server.body()["session_id"]
    session = server.start(held=True, session_id=key, api_key=key)
    for view in (server.get_state(session), server.cancel_and_wait(session)):
        shown = [name for name, value in view.items() if key in str(value)]
        expect(not shown, f"it is in {', '.join(shown)}")


def group(server: Server) -> None:
    """the samples of a group work on one row"""
    first = server.start()
    second = server.start(group_id=first.body["group_id"])
    rows = [server.wait_ended(session).get("task_id") for session in (first, second)]
    if None in rows:
        raise Inconclusive("the response has no task_id")
    expect(rows[0] == rows[1], f"{rows[0]} and {rows[1]}")


CHECKS: dict[Check, Grade] = {
    model_call: Grade.REQUIRED,
    model_path: Grade.OURS,
    key_hidden: Grade.OURS,
    group: Grade.REQUIRED,
}
