"""Interfaces of an inference engine: `Engine` for the loop, `Generator` for the gateway.

Invariant: tokens in, tokens out. No text crosses these interfaces.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import ConfigDict, Field, StrictFloat, StrictInt


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of the policy.

    `max_tokens` bounds the new tokens of one call. A token of `stop_token_ids` ends the turn and stays part of it.
    The bounds are those of the gateway's control route, which takes these fields and no others.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    temperature: Annotated[StrictFloat | StrictInt, Field(ge=0)] = 1.0
    top_p: Annotated[StrictFloat | StrictInt, Field(gt=0, le=1)] = 1.0
    max_tokens: Annotated[StrictInt, Field(ge=1)] = 1024
    stop_token_ids: tuple[StrictInt, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """Sampled `tokens`, a sampled stop token included, and their natural-log probabilities, of the same length."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str  # "stop" | "length"
    version: int  # of the weights that sampled the tokens


class Generator(Protocol):
    """The gateway's interface to an engine. `version` is that of the served weights; the loader of weights sets it."""

    version: int

    async def generate(self, prompt: list[int], sampling: Sampling) -> Completion:
        """Sample a continuation of the token ids `prompt`. Cancelling the task aborts the request in the engine.

        Raises ContextLengthExceeded where `prompt` leaves no room for a token, ModelUnreachable without an answer.
        """


class Engine(Protocol):
    """The loop's interface to an engine: the server's life and its weights."""

    socket: Path  # Unix socket of the server's API

    def start(self) -> None:
        """Start the server's process and return at once."""

    def wait_ready(self, timeout_s: float) -> None:
        """Return when the server answers. Raises ModelUnreachable, with the end of the log, if it ends or is late."""

    def load_weights(self, directory: Path, version: int) -> None:
        """Serve the Hugging Face-format weights in `directory` from now on. Drops every cached prefix."""

    def stop(self) -> None:
        """End the server and all its processes. Repeatable."""
