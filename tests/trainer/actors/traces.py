"""Token trees for tests: hand-made ones, and random ones over few tokens, so that samples share long prefixes."""

from hypothesis import strategies as st

from trainer.actors.base import TrainingSample
from trainer.records import Segment, Trace


def trace(*segments: tuple) -> Trace:
    """A trace of segments: (parent, tokens) for prompts, (parent, tokens, logprobs) for sampled ones."""
    return Trace(
        tuple(
            Segment(parent, bool(logprobs), tuple(tokens), tuple(*logprobs), version=0 if logprobs else -1)
            for parent, tokens, *logprobs in segments
        )
    )


def contexts(trace: Trace) -> list[list[tuple[int, float | None]]]:
    """Every segment's whole context, from the root to its end: (token, logprob or None for a prompt token)."""
    found: list[list[tuple[int, float | None]]] = []
    for segment in trace.segments:
        before = found[segment.parent] if segment.parent >= 0 else []
        logprobs = segment.logprobs if segment.sampled else (None,) * len(segment.tokens)
        found.append(before + list(zip(segment.tokens, logprobs, strict=True)))
    return found


def sampled_after(trace: Trace) -> dict[tuple[int, ...], float]:
    """The trained tokens: logprob of every sampled token by its whole context, the token included."""
    found: dict[tuple[int, ...], float] = {}
    for context in contexts(trace):
        tokens = tuple(token for token, _ in context)
        for position, (_, logprob) in enumerate(context):
            if logprob is not None:
                found.setdefault(tokens[: position + 1], logprob)
    return found


@st.composite
def traces(draw, vocabulary: int = 3) -> Trace:
    """Random traces that begin with a prompt."""
    tokens = st.lists(st.integers(0, vocabulary - 1), min_size=1, max_size=4)
    segments = [(-1, draw(tokens))]
    for index in range(1, draw(st.integers(1, 6))):
        parent = draw(st.integers(0, index - 1))
        turn = draw(tokens)
        if draw(st.booleans()):
            segments.append((parent, turn, [draw(st.floats(-9, 0, width=32)) for _ in turn]))
        else:
            segments.append((draw(st.sampled_from([parent, -1])), turn))
    return trace(*segments)


def groups(**options):
    """Random groups of training samples."""
    samples = st.builds(TrainingSample, traces(**options), st.sampled_from([-1.5, -0.5, 0.5, 1.0]))
    return st.lists(samples, min_size=1, max_size=5)
