"""Requests to a gateway under test: headers, bodies and assertions that its test files share."""

import asyncio

CONTROL = {"Authorization": "Bearer control"}
AGENT = {"Authorization": "Bearer key"}
MESSAGES = [{"role": "user", "content": "go"}]
CHAT = "/v1/chat/completions"


def opening(session_id, key, max_tokens=64):
    """Body of a request that opens a session."""
    return {
        "session_id": session_id,
        "key": key,
        "sampling": {"temperature": 0.9, "top_p": 0.5, "max_tokens": max_tokens},
    }


async def error_of(response, status):
    """The error of a response, which must have this status and OpenAI's error fields."""
    body = await response.json()
    assert response.status == status, body
    assert set(body["error"]) == {"message", "type", "code", "param"}
    return body["error"]


async def until(condition):
    """Wait for a condition that holds soon."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)
