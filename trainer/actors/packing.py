"""Packs training samples: merges traces into token tries, so that shared prefixes are computed once.

A trie node is one token in one context. It goes through the model once, however many samples share it. Nodes are in
depth-first order, so the descendants of node i are exactly the nodes i+1 ... end[i]-1, and one integer per node
describes the whole attention mask.

Invariant: a node's ancestors, read from the root, are exactly the sequence that the engine had, at the same positions.
Every sampled token of every sample appears once among the trained tokens, with that sample's logprob and advantage.
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

    `input_ids [N]`, `positions [N]` (depth of the token in its context) and `end [N]` (see the module) describe the
    trie. `node [T]` is the predicting node, `target [T]` the token that was sampled after it, `old_logprob [T]`
    (float32) the engine's logprob of it, and `advantage [T]` (float32) that of its sample. The others are int64.
    """

    input_ids: Tensor
    positions: Tensor
    end: Tensor
    node: Tensor
    target: Tensor
    old_logprob: Tensor
    advantage: Tensor

    def to(self, device: torch.device) -> "Pack":
        """A copy with all tensors on `device`."""
        return Pack(*(getattr(self, name).to(device) for name in self.__slots__))


def ancestor_mask(end: Tensor) -> Tensor:
    """The attention mask of `end [N]`: `[1, 1, N, N]`, bool, true at (i, j) where node j is i or an ancestor of i."""
    index = torch.arange(len(end), device=end.device)
    return ((index <= index[:, None]) & (index[:, None] < end))[None, None]


def pack(samples: Sequence[TrainingSample], max_tokens: int) -> list[Pack]:
    """Merge `samples`, in their order, into tries of at most `max_tokens` nodes each.

    Samples of one group should be neighbours: they share the longest prefixes. A sample is never split; one that
    exceeds `max_tokens` by itself becomes a pack of its own. Samples without sampled tokens are left out.
    """
    packs: list[Pack] = []
    trie = _Trie()
    for sample in samples:
        if not sample.trace.n_sampled():
            continue
        size_before = trie.size()
        trie.insert(sample)
        if len(trie.tokens) > max_tokens and size_before != (0, 0):
            trie.truncate(size_before)
            packs.append(trie.to_pack())
            trie = _Trie()
            trie.insert(sample)
    if trie.trained:
        packs.append(trie.to_pack())
    return packs


class _Trie:
    """A trie under construction, with its nodes in insertion order. `children` maps (parent, token) to the child."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.children: dict[tuple[int, int], int] = {}
        self.trained: list[tuple[int, int, float, float]] = []  # predicting node, target, old logprob, advantage

    def insert(self, sample: TrainingSample) -> None:
        """Merge one trace. A token that two branches of it sampled in the same context is trained once.

        Raises ValueError for a trace that begins with a sampled token.
        """
        trained: dict[tuple[int, int], float] = {}
        for parent, token, logprob in self._walk(sample.trace):
            if logprob is not None:
                trained.setdefault((parent, token), logprob)
        self.trained += [(node, token, logprob, sample.advantage) for (node, token), logprob in trained.items()]

    def _walk(self, trace: Trace) -> Iterator[tuple[int, int, float | None]]:
        """Add the trace's tokens. Yields (predicting node, token, logprob); the logprob of a prompt token is None."""
        last_nodes: list[int] = []
        for segment in trace.segments:
            node = ROOT if segment.parent < 0 else last_nodes[segment.parent]
            for offset, token in enumerate(segment.tokens):
                if segment.sampled and node == ROOT:
                    raise ValueError("a trace must begin with prompt tokens, not with sampled ones")
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

    def size(self) -> tuple[int, int]:
        """Number of nodes and of trained tokens."""
        return len(self.tokens), len(self.trained)

    def truncate(self, size: tuple[int, int]) -> None:
        """Remove everything inserted since `size()` returned `size`."""
        n_nodes, n_trained = size
        for parent, token in zip(self.parents[n_nodes:], self.tokens[n_nodes:], strict=True):
            del self.children[parent, token]
        del self.tokens[n_nodes:], self.parents[n_nodes:], self.depths[n_nodes:], self.trained[n_trained:]

    def to_pack(self) -> Pack:
        """The trie as tensors, its nodes renumbered depth-first. Leaves that predict nothing are included."""
        n = len(self.tokens)
        size = [1] * n  # of the subtrees
        for node in range(n - 1, -1, -1):  # parents precede their children
            if self.parents[node] != ROOT:
                size[self.parents[node]] += size[node]
        new_index = [0] * n
        next_free = [0] * n  # new index of the next child of a node
        next_root = 0
        for node, parent in enumerate(self.parents):
            if parent == ROOT:
                new_index[node], next_root = next_root, next_root + size[node]
            else:
                new_index[node] = next_free[parent]
                next_free[parent] += size[node]
            next_free[node] = new_index[node] + 1
        order = sorted(range(n), key=new_index.__getitem__)
        nodes, targets, logprobs, advantages = zip(*self.trained, strict=True)
        return Pack(
            input_ids=torch.tensor([self.tokens[node] for node in order]),
            positions=torch.tensor([self.depths[node] for node in order]),
            end=torch.tensor([new_index[node] + size[node] for node in order]),
            node=torch.tensor([new_index[node] for node in nodes]),
            target=torch.tensor(targets),
            old_logprob=torch.tensor(logprobs, dtype=torch.float32),
            advantage=torch.tensor(advantages, dtype=torch.float32),
        )
