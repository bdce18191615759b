"""Sessions of the gateway: retries, aborts, closing, weight versions, isolation."""

import asyncio

from aiohttp import ClientSession

from tests.trainer.gateway.calls import AGENT, CHAT, CONTROL, MESSAGES, error_of, opening, until
from trainer.gateway import session as session_module


def test_identical_requests_coalesce_in_flight_and_replay_after(gateway):
    async def scenario(client, generator):
        generator.open.clear()
        body = {"messages": MESSAGES}
        posts = [asyncio.ensure_future(client.post(CHAT, headers=AGENT, json=body)) for _ in range(5)]
        await until(lambda: generator.calls)
        status = await (await client.get("/control/status", headers=CONTROL)).json()
        assert status == {"one": {"n_calls": 0, "in_flight": 1}}
        posts[0].cancel()  # one of the retries disconnects: the others still get their response
        await asyncio.sleep(0.05)
        generator.open.set()
        bodies = [await (await post).json() for post in posts[1:]]
        again = await (await client.post(CHAT, headers=AGENT, json=body)).json()
        assert all(body == again for body in bodies) and len(generator.calls) == 1 and not generator.calls[0].aborted
        status = await (await client.get("/control/status", headers=CONTROL)).json()
        assert status == {"one": {"n_calls": 1, "in_flight": 0}}

    gateway(scenario)


def test_a_client_that_disconnects_aborts_its_call_and_may_retry(gateway):
    async def scenario(client, generator):
        generator.open.clear()
        post = asyncio.ensure_future(client.post(CHAT, headers=AGENT, json={"messages": MESSAGES}))
        await until(lambda: generator.calls)
        post.cancel()
        await until(lambda: generator.calls[0].aborted)
        generator.open.set()
        assert (await client.post(CHAT, headers=AGENT, json={"messages": MESSAGES})).status == 200
        trace = await (await client.delete("/control/sessions/one", headers=CONTROL)).json()
        assert trace["n_calls"] == 1 and len(trace["segments"]) == 2  # without the aborted call

    gateway(scenario)


def test_closing_aborts_calls_in_flight_and_is_final(gateway):
    async def scenario(client, generator):
        await client.post(CHAT, headers=AGENT, json={"messages": MESSAGES})
        generator.open.clear()
        other = {"messages": [{"role": "user", "content": "other"}]}
        post = asyncio.ensure_future(client.post(CHAT, headers=AGENT, json=other))
        await until(lambda: len(generator.calls) == 2)
        traces = [await (await client.delete("/control/sessions/one", headers=CONTROL)).json() for _ in range(2)]
        assert traces[0] == traces[1] and traces[0]["n_calls"] == 1
        assert generator.calls[1].aborted
        assert (await error_of(await post, 409))["code"] == "conflict"
        for path, body in ((CHAT, other), (CHAT, {"messages": MESSAGES})):
            await error_of(await client.post(path, headers=AGENT, json=body), 409)
        await error_of(await client.post("/control/sessions", headers=CONTROL, json=opening("one", "key")), 409)
        assert await (await client.get("/control/status", headers=CONTROL)).json() == {}
        await error_of(await client.delete("/control/sessions/never", headers=CONTROL), 404)

    gateway(scenario)


def test_concurrent_closes_return_the_same_trace(gateway):
    async def scenario(client, generator):
        generator.open.clear()
        post = asyncio.ensure_future(client.post(CHAT, headers=AGENT, json={"messages": MESSAGES}))
        await until(lambda: generator.calls)
        closes = await asyncio.gather(*(client.delete("/control/sessions/one", headers=CONTROL) for _ in range(3)))
        assert [await close.json() for close in closes] == [{"n_calls": 0, "segments": []}] * 3
        await error_of(await post, 409)

    gateway(scenario)


def test_opening_is_idempotent_unless_settings_differ(gateway):
    async def scenario(client, _):
        for body, status in (
            (opening("one", "key"), 200),
            (opening("one", "key", 5), 409),
            (opening("one", "key2"), 409),
            (opening("two", "key"), 409),
            (opening("two", "key2"), 200),
        ):
            assert (await client.post("/control/sessions", headers=CONTROL, json=body)).status == status

    gateway(scenario)


def test_old_closed_sessions_are_forgotten(gateway, monkeypatch):
    monkeypatch.setattr(session_module, "KEEP_CLOSED", 2)

    async def scenario(client, _):
        for name in ("two", "three", "four"):
            await client.post("/control/sessions", headers=CONTROL, json=opening(name, f"key-{name}"))
        for name in ("one", "two", "three"):
            assert (await client.delete(f"/control/sessions/{name}", headers=CONTROL)).status == 200
        await error_of(await client.delete("/control/sessions/one", headers=CONTROL), 404)
        await error_of(await client.post(CHAT, headers=AGENT, json={"messages": MESSAGES}), 401)
        headers = {"Authorization": "Bearer key-two"}
        await error_of(await client.post(CHAT, headers=headers, json={"messages": MESSAGES}), 409)

    gateway(scenario)


def test_versions_are_recorded_with_tokens_and_do_not_change_during_a_call(gateway):
    async def scenario(client, generator):
        await client.post(CHAT, headers=AGENT, json={"messages": MESSAGES})
        assert (await client.put("/control/version", headers=CONTROL, json={"version": 7})).status == 200
        generator.open.clear()
        more = {"messages": [{"role": "user", "content": "more"}]}
        post = asyncio.ensure_future(client.post(CHAT, headers=AGENT, json=more))
        await until(lambda: len(generator.calls) == 2)
        error = await error_of(await client.put("/control/version", headers=CONTROL, json={"version": 8}), 409)
        assert "close one first" in error["message"]
        generator.open.set()
        assert (await post).status == 200
        await error_of(await client.put("/control/version", headers=CONTROL, json={"version": "8"}), 400)
        trace = await (await client.delete("/control/sessions/one", headers=CONTROL)).json()
        assert [segment["version"] for segment in trace["segments"]] == [-1, 0, -1, 7]

    gateway(scenario)


def test_sessions_do_not_share_anything(gateway):
    async def scenario(client, generator):
        await client.post("/control/sessions", headers=CONTROL, json=opening("two", "key2"))
        for key in ("key", "key2"):
            await client.post(CHAT, headers={"Authorization": f"Bearer {key}"}, json={"messages": MESSAGES})
        assert len(generator.calls) == 2
        await client.delete("/control/sessions/one", headers=CONTROL)
        async with ClientSession() as other:  # another connection
            headers = {"Authorization": "Bearer key2"}
            response = await other.post(client.make_url(CHAT), headers=headers, json={"messages": MESSAGES})
            assert response.status == 200

    gateway(scenario)
