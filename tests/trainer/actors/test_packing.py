"""Packing: each distinct context once, each sampled token of each sample once; and the packed forward pass equals the
plain one."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.actors.traces import contexts, groups, sampled_after, trace
from trainer.actors.base import TrainingSample
from trainer.actors.packing import Pack, ancestor_mask, pack


def node_contexts(packed: Pack) -> list[tuple[int, ...]]:
    """Every node's context as the attention mask shows it, in the order of the positions."""
    found = []
    for row in ancestor_mask(packed.end)[0, 0]:
        columns = row.nonzero()[:, 0]
        columns = columns[packed.positions[columns].argsort()]
        assert packed.positions[columns].tolist() == list(range(len(columns)))
        found.append(tuple(packed.input_ids[columns].tolist()))
    return found


def trained(packed: Pack) -> Counter:
    """The trained columns as (context with the target, logprob, advantage)."""
    before = node_contexts(packed)
    tensors = (packed.node, packed.target, packed.old_logprob, packed.advantage)
    columns = zip(*(tensor.tolist() for tensor in tensors), strict=True)
    return Counter((before[node] + (target,), logprob, advantage) for node, target, logprob, advantage in columns)


def expected_trained(samples: list[TrainingSample]) -> Counter:
    return Counter(
        (context, logprob, s.advantage) for s in samples for context, logprob in sampled_after(s.trace).items()
    )


def expected_contexts(samples: list[TrainingSample]) -> set[tuple[int, ...]]:
    whole = [tuple(token for token, _ in context) for s in samples for context in contexts(s.trace)]
    return {context[: n + 1] for context in whole for n in range(len(context))}


@given(groups())
def test_one_pack_holds_each_context_once_and_each_sampled_token_of_each_sample_once(samples):
    trainable = [s for s in samples if s.trace.n_sampled()]
    packs = pack(samples, max_tokens=10_000)
    assert len(packs) == (1 if trainable else 0)
    if trainable:
        found = node_contexts(packs[0])
        assert Counter(found) == Counter(expected_contexts(trainable))
        assert trained(packs[0]) == expected_trained(trainable)


@given(groups(), st.integers(1, 40))
def test_max_tokens_splits_between_samples_and_loses_none(samples, max_tokens):
    trainable = [s for s in samples if s.trace.n_sampled()]
    packs = pack(samples, max_tokens)
    assert sum((trained(p) for p in packs), Counter()) == expected_trained(trainable)
    rest = trainable
    for packed in packs:  # each pack is the trie of the next few whole samples
        count = next(n for n in range(1, len(rest) + 1) if trained(packed) == expected_trained(rest[:n]))
        assert Counter(node_contexts(packed)) == Counter(expected_contexts(rest[:count]))
        assert len(packed.input_ids) <= max_tokens or count == 1
        rest = rest[count:]
    assert not rest


def test_two_samples_share_equal_tokens_and_each_trains_its_own():
    first = TrainingSample(trace((-1, [7, 8]), (0, [1, 2], [-0.1, -0.2])), 1.0)
    second = TrainingSample(trace((-1, [7, 8]), (0, [1, 3], [-0.3, -0.4])), -1.0)
    (packed,) = pack([first, second], 100)
    assert packed.input_ids.tolist() == [7, 8, 1, 2, 3]
    assert packed.positions.tolist() == [0, 1, 2, 3, 3]
    assert packed.end.tolist() == [5, 5, 5, 4, 5]
    assert packed.node.tolist() == [1, 2, 1, 2]
    assert packed.target.tolist() == [1, 2, 1, 3]
    assert packed.old_logprob.tolist() == pytest.approx([-0.1, -0.2, -0.3, -0.4])
    assert packed.advantage.tolist() == [1.0, 1.0, -1.0, -1.0]


def test_a_sampled_token_that_two_branches_of_one_sample_share_counts_once():
    # Two calls continue the same sampled turn: once as one shared segment, once as two equal ones.
    shared = trace((-1, [7]), (0, [1, 2], [-0.1, -0.2]), (1, [5]), (2, [3], [-0.5]), (1, [6]), (4, [4], [-0.6]))
    repeated = trace(
        (-1, [7]),
        (0, [1, 2], [-0.1, -0.2]),
        (1, [5]),
        (2, [3], [-0.5]),
        (0, [1, 2], [-0.1, -0.2]),
        (4, [6]),
        (5, [4], [-0.6]),
    )
    packs = [pack([TrainingSample(t, 1.0)], 100)[0] for t in (shared, repeated)]
    assert trained(packs[0]) == trained(packs[1])
    assert sum(trained(packs[0]).values()) == 4


def test_a_trace_without_a_prompt_is_rejected():
    with pytest.raises(ValueError, match="must begin with prompt tokens"):
        pack([TrainingSample(trace((-1, [1], [-0.1])), 1.0)], 100)


def test_samples_without_sampled_tokens_are_left_out():
    assert pack([TrainingSample(trace((-1, [1, 2, 3])), 1.0)], 100) == []
    assert pack([], 100) == []


@pytest.fixture(scope="module")
def model(tiny_llama):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()


def random_group(seed: int) -> list[TrainingSample]:
    """Six samples that share a prompt, most of them also the first turn; one branches."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(n: int, high: int = 300) -> list[int]:
        return torch.randint(0, high, (n,), generator=generator).tolist()

    prompt, first, observation = tokens(20), tokens(6), tokens(9)
    group = []
    for number in range(6):
        turn = first if number % 3 else tokens(6)
        segments = [(-1, prompt), (0, turn, [-1.0] * 6), (1, observation), (2, tokens(5, 2), [-1.0] * 5)]
        if number == 4:
            segments += [(1, tokens(7)), (4, tokens(3), [-2.0] * 3)]
        group.append(TrainingSample(trace(*segments), float(number - 2)))
    return group


def plain_logprobs(model, samples: list[TrainingSample]) -> list[tuple[tuple[int, ...], torch.Tensor]]:
    """(context with the target, logprob) by padded plain forward passes, once per sample."""
    rows = [[token for token, _ in context] for s in samples for context in contexts(s.trace)]
    width = max(map(len, rows))
    input_ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    attention = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    logprobs = model(input_ids=input_ids, attention_mask=attention).logits.log_softmax(-1)
    positions = {tuple(row[: n + 1]): (r, n) for r, row in enumerate(rows) for n in range(len(row))}
    found = []
    for s in samples:
        for context in sampled_after(s.trace):
            row, position = positions[context[:-1]]
            found.append((context, logprobs[row, position, context[-1]]))
    return found


@pytest.mark.parametrize("max_tokens", [10_000, 80])
def test_the_packed_forward_pass_equals_the_plain_one(model, max_tokens):
    samples = random_group(0)
    plain = plain_logprobs(model, samples)
    weights = torch.linspace(-1, 1, len(plain))
    model.zero_grad()
    (torch.stack([value for _, value in plain]) * weights).sum().backward()
    expected_gradients = [p.grad.clone() for p in model.parameters()]

    model.zero_grad()
    packs = pack(samples, max_tokens)
    assert (len(packs) == 1) == (max_tokens > 1000)
    n_plain = sum(len(context) for s in samples for context in contexts(s.trace)[-1:])
    assert sum(len(p.input_ids) for p in packs) < n_plain
    start = 0
    for packed in packs:
        mask = ancestor_mask(packed.end)
        output = model(input_ids=packed.input_ids[None], position_ids=packed.positions[None], attention_mask=mask)
        logprobs = output.logits[0].log_softmax(-1)[packed.node, packed.target]
        expected = plain[start : start + len(logprobs)]
        assert packed.target.tolist() == [context[-1] for context, _ in expected]
        assert torch.allclose(logprobs, torch.stack([value for _, value in expected]), atol=1e-5, rtol=0)
        (logprobs * weights[start : start + len(logprobs)]).sum().backward()
        start += len(logprobs)
    assert start == len(plain)
    for parameter, gradient in zip(model.parameters(), expected_gradients, strict=True):
        assert (parameter.grad - gradient).norm() <= 1e-4 * gradient.norm()
