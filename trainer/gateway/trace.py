"""Token tree of a session: prompt and sampled tokens, turn by turn, with a branch where an agent rewrites its history.

Invariant (token in, token out): a turn's `sequence` is exactly the tokens that the engine received and sampled.
Messages only identify the turn that a request continues; they are never tokenized here.
"""

import hashlib
import json
from dataclasses import asdict, dataclass

from trainer.engines.base import Completion
from trainer.records import Segment, Trace


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One completed call.

    `new_prompt` are the prompt tokens after the parent's sequence. `message` is the sampled assistant message,
    normalized. `n_messages` counts the messages of the history, `message` included.
    """

    parent: "Turn | None"
    new_prompt: tuple[int, ...]
    completion: Completion
    message: dict
    n_messages: int

    def path(self) -> list["Turn"]:
        """The turns from the root to this one."""
        turns = [self]
        while (parent := turns[-1].parent) is not None:
            turns.append(parent)
        return turns[::-1]

    def sequence(self) -> list[int]:
        """All tokens from the root to the end of this turn: one engine sequence."""
        return [token for turn in self.path() for token in (*turn.new_prompt, *turn.completion.tokens)]


class History:
    """A request's messages and tools, with one digest per prefix. Equal digests mean equal prefixes."""

    def __init__(self, messages: list[dict], tools: list[dict] | None):
        self.messages = messages
        self.digests = [_digest(b"", tools)]
        for message in messages:
            self.digests.append(_digest(self.digests[-1], _canonical(message)))

    def digest_with(self, message: dict) -> bytes:
        """The digest of this history followed by `message`."""
        return _digest(self.digests[-1], _canonical(message))


class TokenTree:
    """The turns of a session, one per completed call."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []
        self._by_history: dict[bytes, list[Turn]] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def find(self, history: History) -> Turn | None:
        """The latest turn whose history is the longest recorded prefix of `history`; None if no turn's is.

        The assistant's messages in the prefix must be unaltered.
        """
        for digest in reversed(history.digests):
            for turn in reversed(self._by_history.get(digest, ())):  # latest first: equal texts may differ in tokens
                if _keeps_reasoning(turn, history.messages):
                    return turn
        return None

    def add(
        self, parent: Turn | None, new_prompt: list[int], completion: Completion, history: History, message: dict
    ) -> Turn:
        """Record that the engine sampled `completion` after `parent`'s sequence and `new_prompt`."""
        turn = Turn(parent, tuple(new_prompt), completion, message, len(history.messages) + 1)
        self._turns.append(turn)
        self._by_history.setdefault(history.digest_with(message), []).append(turn)
        return turn

    def trace(self) -> Trace:
        """The tree as segments, two per turn: prompt, then sampled. Parents precede children."""
        segments: list[Segment] = []
        last_segment: dict[Turn | None, int] = {None: -1}
        for turn in self._turns:
            segments.append(Segment(last_segment[turn.parent], False, turn.new_prompt))
            completion = turn.completion
            segments.append(
                Segment(
                    parent=len(segments) - 1,
                    sampled=True,
                    tokens=completion.tokens,
                    logprobs=completion.logprobs,
                    version=completion.version,
                    finish_reason=completion.finish_reason,
                )
            )
            last_segment[turn] = len(segments) - 1
        return Trace(tuple(segments), n_calls=len(self._turns))


def trace_to_wire(trace: Trace) -> dict:
    """The trace as JSON types, for `trace_from_wire`."""
    return {"n_calls": trace.n_calls, "segments": [asdict(segment) for segment in trace.segments]}


def trace_from_wire(wire: dict) -> Trace:
    """The trace from `trace_to_wire`'s form. Floats are preserved exactly."""
    segments = (
        Segment(**{**segment, "tokens": tuple(segment["tokens"]), "logprobs": tuple(segment["logprobs"])})
        for segment in wire["segments"]
    )
    return Trace(tuple(segments), wire["n_calls"])


def _keeps_reasoning(turn: Turn, messages: list[dict]) -> bool:
    """True unless `messages` alter the reasoning of a turn on the path. They may omit it: most agents do."""
    for ancestor in turn.path():
        sent = messages[ancestor.n_messages - 1].get("reasoning_content")
        if sent and sent != ancestor.message.get("reasoning_content"):
            return False
    return True


def _canonical(message: dict) -> dict:
    """The part of a message that identifies it: of an assistant's, content and calls, without ids and reasoning."""
    if message["role"] != "assistant":
        return message
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    return {"role": "assistant", "content": message.get("content") or "", "tool_calls": calls}


def _digest(prefix: bytes, value) -> bytes:
    return hashlib.blake2b(prefix + json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()
