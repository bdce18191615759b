"""Agreement of engine and actor: vLLM samples, the actor recomputes the same logprobs from packed samples."""

import asyncio
import dataclasses
from pathlib import Path

import pytest
import torch

from trainer.actors.base import TrainingSample
from trainer.actors.torch_actor import TorchActor
from trainer.engines.base import Completion, Sampling
from trainer.engines.vllm import VllmGenerator
from trainer.records import Segment, Trace

PROMPT, OBSERVATION = list(range(40, 70)), list(range(100, 112))
N_SAMPLES = 6
# The logits of this random model are large, so bfloat16 rounds them more than a trained model's. Measured: 0.019.
MEAN_DIFFERENCE = 0.05

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("vllm")]


def two_turns(socket: Path) -> list[tuple[Completion, Completion]]:
    """Six conversations: a turn on the prompt, an observation, another turn."""
    sampling = Sampling(temperature=1.0, max_tokens=12)

    async def converse(generator: VllmGenerator) -> tuple[Completion, Completion]:
        first = await generator.generate(PROMPT, sampling)
        return first, await generator.generate(PROMPT + list(first.tokens) + OBSERVATION, sampling)

    async def main() -> list[tuple[Completion, Completion]]:
        generator = VllmGenerator(socket)
        try:
            return await asyncio.gather(*(converse(generator) for _ in range(N_SAMPLES)))
        finally:
            await generator.close()

    return asyncio.run(main())


def as_trace(first: Completion, second: Completion) -> Trace:
    def sampled(parent: int, completion: Completion) -> Segment:
        return Segment(
            parent, True, completion.tokens, completion.logprobs, completion.version, completion.finish_reason
        )

    return Trace(
        (
            Segment(-1, False, tuple(PROMPT)),
            sampled(0, first),
            Segment(1, False, tuple(OBSERVATION)),
            sampled(2, second),
        ),
        n_calls=2,
    )


def test_the_actor_recomputes_what_vllm_sampled(vllm_engine, tiny_llama):
    traces = [as_trace(*turns) for turns in two_turns(vllm_engine.socket)]
    n_tokens = sum(trace.n_sampled() for trace in traces)
    for dtype in (torch.bfloat16, torch.float32):
        actor = TorchActor(tiny_llama, learning_rate=0.0, device="cpu", compute_dtype=dtype)
        report = actor.step([[TrainingSample(trace, (-1.0) ** n) for n, trace in enumerate(traces)]])
        assert report.n_tokens == n_tokens and report.n_forward_tokens <= 30 + N_SAMPLES * 36
        assert report.logprob_diff_mean < MEAN_DIFFERENCE

    missing = Segment(1, False, tuple(OBSERVATION[1:]))
    broken = [dataclasses.replace(t, segments=(*t.segments[:2], missing, t.segments[3])) for t in traces]
    report = actor.step([[TrainingSample(trace, (-1.0) ** n) for n, trace in enumerate(broken)]])
    assert report.logprob_diff_mean > 4 * MEAN_DIFFERENCE, "one lost token shows in the metric"
