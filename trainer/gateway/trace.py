"""A session's token tree: what the engine was given and what it sampled, turn by turn, branching where an agent diverges.

Invariant (token in, token out): a turn's `sequence` is exactly what the engine saw and sampled. Messages serve only to
find the turn that a request continues; they never become tokens here.
"""

import hashlib
import json
from dataclasses import asdict, dataclass

from trainer.engines.base import Completion
from trainer.records import Segment, Trace


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One answered call. `given`: prompt tokens beyond the parent's sequence. `n_messages`: the history's length, answer
    included. `answer`: the assistant message as the agent received it."""

    parent: "Turn | None"
    given: tuple[int, ...]
    completion: Completion
    answer: dict
    n_messages: int

    def path(self) -> list["Turn"]:
        """The turns from the root to this one."""
        turns, turn = [], self
        while turn is not None:
            turns.append(turn)
            turn = turn.parent
        return turns[::-1]

    def sequence(self) -> list[int]:
        """All tokens from the root to this turn's end, as the engine had them."""
        return [token for turn in self.path() for token in (*turn.given, *turn.completion.tokens)]


class History:
    """A request's messages and tools, reduced to one digest a prefix: equal digests mean that the agent sent the same."""

    def __init__(self, messages: list[dict], tools: list[dict] | None):
        self.messages = messages
        self.digests = [_digest(b"", tools)]
        for message in messages:
            self.digests.append(_digest(self.digests[-1], _canonical(message)))

    def with_answer(self, answer: dict) -> bytes:
        """The digest of this history followed by `answer`."""
        return _digest(self.digests[-1], _canonical(answer))


class TokenTree:
    """Grows by one turn an answered call."""

    def __init__(self):
        self._turns: list[Turn] = []
        self._by_history: dict[bytes, list[Turn]] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def find(self, history: History) -> Turn | None:
        """The turn with the longest history that `history` begins with, the assistant's messages unaltered; None: none."""
        for digest in reversed(history.digests):
            for turn in reversed(
                self._by_history.get(digest, ())
            ):  # the same words may have been sampled more than once
                if _same_reasoning(turn, history.messages):
                    return turn
        return None

    def add(
        self, parent: Turn | None, given: list[int], completion: Completion, history: History, answer: dict
    ) -> Turn:
        """Record that the engine, given `parent`'s sequence and then `given`, sampled `completion`."""
        turn = Turn(parent, tuple(given), completion, answer, len(history.messages) + 1)
        self._turns.append(turn)
        self._by_history.setdefault(history.with_answer(answer), []).append(turn)
        return turn

    def trace(self) -> Trace:
        """The tree as segments: two a turn, given then sampled; parents stand before children as turns are added."""
        segments: list[Segment] = []
        last_segment: dict[Turn | None, int] = {None: -1}
        for turn in self._turns:
            segments.append(Segment(last_segment[turn.parent], False, turn.given))
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
    """JSON-ready form of a trace, read back by `trace_from_wire`."""
    return {"n_calls": trace.n_calls, "segments": [asdict(segment) for segment in trace.segments]}


def trace_from_wire(wire: dict) -> Trace:
    """The trace that `trace_to_wire` was given; floats survive exactly."""
    segments = (
        Segment(**{**segment, "tokens": tuple(segment["tokens"]), "logprobs": tuple(segment["logprobs"])})
        for segment in wire["segments"]
    )
    return Trace(tuple(segments), wire["n_calls"])


def _same_reasoning(turn: Turn, messages: list[dict]) -> bool:
    """Agents may drop the reasoning they were answered (most do); changing it is a divergence."""
    for ancestor in turn.path():
        sent = messages[ancestor.n_messages - 1].get("reasoning_content")
        if sent and sent != ancestor.answer.get("reasoning_content"):
            return False
    return True


def _canonical(message: dict) -> dict:
    """What makes two messages the same: for an assistant's, content and calls, not ids, spacing of JSON, or reasoning."""
    if message["role"] != "assistant":
        return message
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    return {"role": "assistant", "content": message.get("content") or "", "tool_calls": calls}


def _digest(prefix: bytes, value) -> bytes:
    return hashlib.blake2b(prefix + json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()
