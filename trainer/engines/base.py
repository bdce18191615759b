"""The seam between the stack and whatever samples tokens: an `Engine` for the loop, a `Generator` for the gateway.

Invariant: tokens in, tokens out. No text crosses this seam.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the policy samples. `max_tokens` counts new tokens a call; `stop_token_ids` end a turn and are kept in it."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 1024
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """`tokens` as sampled, stop token included where one was sampled; `logprobs` natural-log, same length."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str  # "stop" | "length"
    version: int  # of the weights that sampled it


class Generator(Protocol):
    """What the gateway needs. Cancelling the awaiting task aborts the request inside the engine.

    `version` counts the weights that the engine serves; whoever loads weights sets it. Raises ContextLengthExceeded where
    `prompt` leaves no room for a token, ModelUnreachable where no engine answers.
    """

    version: int

    async def generate(self, prompt: list[int], sampling: Sampling) -> Completion: ...


class Engine(Protocol):
    """What the loop needs: a server's life and its weights."""

    url: str

    def start(self) -> None:
        """Start the server's process and return at once."""

    def wait_ready(self, timeout_s: float) -> None:
        """Return when it answers; raise ModelUnreachable with the log's last lines when it ends or is late."""

    def load_weights(self, directory: Path, version: int) -> None:
        """Serve the Hugging Face-format weights in `directory` from now on; every cached prefix is forgotten."""

    def stop(self) -> None:
        """End the server and all its processes; repeatable."""
