"""The trie: each distinct context once, each sampled token of each sample once, nothing else. And: the packed forward
pass is the plain one."""

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
    columns = zip(packed.node.tolist(), packed.target.tolist(), packed.old_logprob.tolist(), packed.advantage.tolist())
    return Counter((before[node] + (target,), logprob, advantage) for node, target, logprob, advantage in columns)


def wanted_trained(samples: list[TrainingSample]) -> Counter:
    return Counter(
        (context, logprob, s.advantage) for s in samples for context, logprob in sampled_after(s.trace).items()
    )


def wanted_contexts(samples: list[TrainingSample]) -> set[tuple[int, ...]]:
    whole = [tuple(token for token, _ in context) for s in samples for context in contexts(s.trace)]
    return {context[: n + 1] for context in whole for n in range(len(context))}


@given(groups())
def test_one_pack_holds_each_context_once_and_each_sampled_token_of_each_sample_once(samples):
    live = [s for s in samples if s.trace.n_sampled()]
    packs = pack(samples, max_tokens=10_000)
    assert len(packs) == (1 if live else 0)
    if live:
        found = node_contexts(packs[0])
        assert Counter(found) == Counter(wanted_contexts(live))
        assert trained(packs[0]) == wanted_trained(live)


@given(groups(), st.integers(1, 40))
def test_a_budget_splits_by_sample_and_loses_nothing(samples, max_tokens):
    live = [s for s in samples if s.trace.n_sampled()]
    packs = pack(samples, max_tokens)
    assert sum((trained(p) for p in packs), Counter()) == wanted_trained(live)
    rest = live
    for packed in packs:  # each pack is the trie of the next few whole samples
        count = next(n for n in range(1, len(rest) + 1) if trained(packed) == wanted_trained(rest[:n]))
        assert Counter(node_contexts(packed)) == Counter(wanted_contexts(rest[:count]))
        assert len(packed.input_ids) <= max_tokens or count == 1
        rest = rest[count:]
    assert not rest


def test_two_samples_share_what_is_equal_and_count_it_each():
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
    # Both calls go on from the same sampled turn: once as one segment of the tree, once written out twice.
    as_tree = trace((-1, [7]), (0, [1, 2], [-0.1, -0.2]), (1, [5]), (2, [3], [-0.5]), (1, [6]), (4, [4], [-0.6]))
    written_out = trace(
        (-1, [7]),
        (0, [1, 2], [-0.1, -0.2]),
        (1, [5]),
        (2, [3], [-0.5]),
        (0, [1, 2], [-0.1, -0.2]),
        (4, [6]),
        (5, [4], [-0.6]),
    )
    packs = [pack([TrainingSample(t, 1.0)], 100)[0] for t in (as_tree, written_out)]
    assert trained(packs[0]) == trained(packs[1])
    assert sum(trained(packs[0]).values()) == 4


def test_a_sampled_token_without_a_prompt_is_a_broken_trace():
    with pytest.raises(ValueError, match="begins with its prompt"):
        pack([TrainingSample(trace((-1, [1], [-0.1])), 1.0)], 100)


def test_samples_without_sampled_tokens_are_left_out():
    assert pack([TrainingSample(trace((-1, [1, 2, 3])), 1.0)], 100) == []
    assert pack([], 100) == []


@pytest.fixture(scope="module")
def model(tiny_llama):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()


def random_group(seed: int) -> list[TrainingSample]:
    """Six samples that share a prompt, mostly their first turn, sometimes more; one branches."""
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
    """The same by padded plain forward passes of every context: (context with the target, logprob), each sample's once."""
    rows = [[token for token, _ in context] for s in samples for context in contexts(s.trace)]
    width = max(map(len, rows))
    input_ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    attention = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    logprobs = model(input_ids=input_ids, attention_mask=attention).logits.log_softmax(-1)
    place = {tuple(row[: n + 1]): (r, n) for r, row in enumerate(rows) for n in range(len(row))}
    found = []
    for s in samples:
        for context in sampled_after(s.trace):
            row, position = place[context[:-1]]
            found.append((context, logprobs[row, position, context[-1]]))
    return found


@pytest.mark.parametrize("max_tokens", [10_000, 80])
def test_the_packed_forward_pass_is_the_plain_one(model, max_tokens):
    samples = random_group(0)
    plain = plain_logprobs(model, samples)
    weights = torch.linspace(-1, 1, len(plain))
    model.zero_grad()
    (torch.stack([value for _, value in plain]) * weights).sum().backward()
    wanted_gradients = [p.grad.clone() for p in model.parameters()]

    model.zero_grad()
    packs = pack(samples, max_tokens)
    assert (len(packs) == 1) == (max_tokens > 1000)
    n_plain = sum(len(context) for s in samples for context in contexts(s.trace)[-1:])
    assert sum(len(p.input_ids) for p in packs) < n_plain
    start = 0
    for packed in packs:
        logprobs = (
            model(
                input_ids=packed.input_ids[None],
                position_ids=packed.positions[None],
                attention_mask=ancestor_mask(packed.end),
            )
            .logits[0]
            .log_softmax(-1)
        )
        mine = logprobs[packed.node, packed.target]
        theirs = plain[start : start + len(mine)]
        assert packed.target.tolist() == [context[-1] for context, _ in theirs]
        assert torch.allclose(mine, torch.stack([value for _, value in theirs]), atol=1e-5, rtol=0)
        (mine * weights[start : start + len(mine)]).sum().backward()
        start += len(mine)
    assert start == len(plain)
    for parameter, wanted in zip(model.parameters(), wanted_gradients):
        assert (parameter.grad - wanted).norm() <= 1e-4 * wanted.norm()
