"""Fixtures for the gateway: a fake engine that records its calls, and a served gateway with one open session."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.trainer.gateway.calls import CONTROL, opening
from trainer.engines.base import Completion, Sampling
from trainer.gateway.render import Renderer
from trainer.gateway.server import create_app
from trainer.gateway.session import Sessions


@dataclass
class Call:
    prompt: tuple[int, ...]
    sampling: Sampling
    tokens: tuple[int, ...] = ()
    aborted: bool = False


@dataclass
class FakeGenerator:
    """A fake `Generator`: samples `reply(prompt)`. While `open` is not set, requests stay in flight."""

    reply: Callable[[list[int]], list[int]]
    version: int = 0
    calls: list[Call] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self):
        self.open.set()

    async def generate(self, prompt: list[int], sampling: Sampling) -> Completion:
        version = self.version
        call = Call(tuple(prompt), sampling)
        self.calls.append(call)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            call.aborted = True
            raise
        sampled = list(self.reply(prompt))
        call.tokens = tuple(sampled[: sampling.max_tokens])
        stopped = bool(call.tokens) and call.tokens[-1] in sampling.stop_token_ids
        logprobs = tuple(-0.5 - i / 7 for i in range(len(call.tokens)))
        return Completion(call.tokens, logprobs, "stop" if stopped else "length", version)


@pytest.fixture(scope="session")
def fake_generator():
    return FakeGenerator


@pytest.fixture(scope="session")
def bash_tool() -> dict:
    command = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    return {"type": "function", "function": {"name": "bash", "description": "Run a command", "parameters": command}}


@pytest.fixture
def gateway(thinking_tokenizer, fake_generator):
    """Runner of scenarios, `async (client, generator)`, against a gateway with one open session of key `key`."""
    renderer = Renderer(thinking_tokenizer)

    def run(scenario, text="Hello.", limit=64):
        async def main():
            generator = fake_generator(lambda _: [*thinking_tokenizer.encode(text), renderer.end_of_turn])
            server = TestServer(create_app(Sessions(renderer, generator, "policy"), "control"))
            async with TestClient(server) as client:
                opened = await client.post("/control/sessions", headers=CONTROL, json=opening("one", "key", limit))
                assert opened.status == 200
                return await scenario(client, generator)

        return asyncio.run(main())

    return run
