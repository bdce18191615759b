"""Samples in, as few forward tokens as possible out: traces merged into one token trie.

A trie node is one token in one context, forwarded once however many samples share it. Nodes stand in depth-first order,
so the descendants of node i are exactly the nodes i+1 ... end[i]-1, and one integer a node describes the whole
attention mask.

Invariant: reading a node's ancestors from the root gives exactly the sequence the engine saw, at the same positions.
Every sampled token of every sample appears once in the trained columns, with that sample's logprob and advantage.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.actors.base import TrainingSample
from trainer.records import Trace

ROOT = -1


@dataclass(frozen=True, slots=True)
class Pack:
    """One microbatch: N forward tokens, T trained tokens.

    `input_ids [N]`, `positions [N]` (a token's depth in its context) and `end [N]` (see the module) describe the trie.
    `node [T]` is the node that predicts, `target [T]` the token that was sampled after it, `old_logprob [T]` (float32)
    the engine's logprob of it and `advantage [T]` (float32) its sample's advantage.
    """

    input_ids: Tensor
    positions: Tensor
    end: Tensor
    node: Tensor
    target: Tensor
    old_logprob: Tensor
    advantage: Tensor

    def to(self, device: torch.device) -> "Pack":
        return Pack(*(getattr(self, name).to(device) for name in self.__slots__))


def ancestor_mask(end: Tensor) -> Tensor:
    """The attention mask `[1, 1, N, N]` (bool): row i is true at column j where j is i itself or an ancestor of i."""
    index = torch.arange(len(end), device=end.device)
    return ((index <= index[:, None]) & (index[:, None] < end))[None, None]


def pack(samples: Sequence[TrainingSample], max_tokens: int) -> list[Pack]:
    """Merge `samples`, in their order, into tries of at most `max_tokens` nodes each.

    Samples of one group should be neighbours: they share most. A sample is never split: one that alone exceeds
    `max_tokens` becomes a pack of its own. Samples without sampled tokens are left out.
    """
    packs: list[Pack] = []
    trie = _Trie()
    for sample in samples:
        if not sample.trace.n_sampled():
            continue
        mark = trie.mark()
        trie.insert(sample)
        if len(trie.tokens) > max_tokens and mark != (0, 0):
            trie.rewind(mark)
            packs.append(trie.freeze())
            trie = _Trie()
            trie.insert(sample)
    if trie.trained:
        packs.append(trie.freeze())
    return packs


class _Trie:
    """Nodes in insertion order: `tokens`, `parents`, `depths`, and `children[(parent, token)] -> node`."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.children: dict[tuple[int, int], int] = {}
        self.trained: list[tuple[int, int, float, float]] = []  # predicting node, target, old logprob, advantage

    def insert(self, sample: TrainingSample) -> None:
        """Merge one trace. A sampled token that two branches of this trace hold in the same context is trained once."""
        trained: dict[tuple[int, int], float] = {}
        for parent, token, logprob in self._walk(sample.trace):
            if logprob is not None:
                trained.setdefault((parent, token), logprob)
        self.trained += [(node, token, logprob, sample.advantage) for (node, token), logprob in trained.items()]

    def _walk(self, trace: Trace) -> Iterator[tuple[int, int, float | None]]:
        """Add the trace's tokens; yields (predicting node, token, logprob or None where the token was given)."""
        last_nodes: list[int] = []
        for segment in trace.segments:
            node = ROOT if segment.parent < 0 else last_nodes[segment.parent]
            for offset, token in enumerate(segment.tokens):
                if segment.sampled and node == ROOT:
                    raise ValueError("a sampled token must follow a given one: a trace begins with its prompt")
                yield node, token, segment.logprobs[offset] if segment.sampled else None
                node = self._child(node, token)
            last_nodes.append(node)

    def _child(self, parent: int, token: int) -> int:
        node = self.children.setdefault((parent, token), len(self.tokens))
        if node == len(self.tokens):
            self.tokens.append(token)
            self.parents.append(parent)
            self.depths.append(0 if parent == ROOT else self.depths[parent] + 1)
        return node

    def mark(self) -> tuple[int, int]:
        return len(self.tokens), len(self.trained)

    def rewind(self, mark: tuple[int, int]) -> None:
        """Forget everything inserted since `mark`."""
        n_nodes, n_trained = mark
        for parent, token in zip(self.parents[n_nodes:], self.tokens[n_nodes:]):
            del self.children[parent, token]
        del self.tokens[n_nodes:], self.parents[n_nodes:], self.depths[n_nodes:], self.trained[n_trained:]

    def freeze(self) -> Pack:
        """The trie as tensors, nodes renumbered depth-first. A leaf that predicts nothing is forwarded all the same."""
        n = len(self.tokens)
        size = [1] * n
        for node in range(n - 1, -1, -1):  # a parent stands before its children
            if self.parents[node] != ROOT:
                size[self.parents[node]] += size[node]
        place = [0] * n
        next_free = [0] * n  # where the next child's subtree of a node begins
        next_root = 0
        for node, parent in enumerate(self.parents):
            if parent == ROOT:
                place[node], next_root = next_root, next_root + size[node]
            else:
                place[node] = next_free[parent]
                next_free[parent] += size[node]
            next_free[node] = place[node] + 1
        order = sorted(range(n), key=place.__getitem__)
        nodes, targets, logprobs, advantages = zip(*self.trained)
        return Pack(
            input_ids=torch.tensor([self.tokens[node] for node in order]),
            positions=torch.tensor([self.depths[node] for node in order]),
            end=torch.tensor([place[node] + size[node] for node in order]),
            node=torch.tensor([place[node] for node in nodes]),
            target=torch.tensor(targets),
            old_logprob=torch.tensor(logprobs, dtype=torch.float32),
            advantage=torch.tensor(advantages, dtype=torch.float32),
        )
