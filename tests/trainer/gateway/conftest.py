"""The generator that stands in for vLLM: it samples what the test says, and remembers exactly what it was given."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from trainer.engines.base import Completion, Sampling


@dataclass
class Call:
    prompt: tuple[int, ...]
    sampling: Sampling
    tokens: tuple[int, ...] = ()
    aborted: bool = False


@dataclass
class FakeGenerator:
    """`reply(prompt)` gives the tokens to sample; while `open` is not set, requests stay in flight."""

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
