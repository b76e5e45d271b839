"""Plain decoding of whole texts, cached: logits after a text, its continuation, its K/V rows and states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specc.check.plain import PlainOutput, Weights, plain_forward
from specc.models.geometry import Geometry
from specc.testing.draft_tree import DraftTree
from specc.testing.oracles import path_to

Text = tuple[int, ...]


@dataclass(slots=True)
class PlainDecoding:
    """One model (the target, or a draft model by its prefix) that reads whole texts."""

    geometry: Geometry
    weights: Weights
    prefix: str = ""
    window: int = 0
    _logits: dict[Text, Tensor] = field(default_factory=dict)
    _last_key: tuple[Text, ...] = ()
    _last: PlainOutput | None = None

    def forward(self, texts: Sequence[Sequence[int]]) -> PlainOutput:
        """All texts, padded behind with token 0 (which no earlier position sees)."""
        width = max(len(text) for text in texts)
        ids = torch.tensor([[*text, *[0] * (width - len(text))] for text in texts])
        with torch.no_grad():
            return plain_forward(self.geometry, self.weights, ids, self.prefix, self.window)

    def logits(self, text: Sequence[int]) -> Tensor:
        """The logits [V] after a text."""
        key = tuple(text)
        if key not in self._logits:
            self._logits[key] = self.forward([key]).logits[0, -1]
        return self._logits[key]

    def continuation(self, text: Sequence[int], count: int) -> list[int]:
        """The next `count` tokens of greedy plain decoding."""
        known = list(text)
        for _ in range(count):
            known.append(int(self.logits(known).argmax()))
        return known[len(text) :]

    def node_logits(self, committed: Sequence[Sequence[int]], trees: Sequence[DraftTree]) -> Tensor:
        """The logits [B,N,V] of every valid node after its own path; padding nodes get zeros."""
        plain, wanted = self._at_nodes(committed, trees)
        out = torch.zeros((len(trees), trees[0].num_nodes, plain.logits.shape[-1]), dtype=plain.logits.dtype)
        for row, node, place, position in wanted:
            out[row, node] = plain.logits[place, position]
        return out

    def node_states(self, committed: Sequence[Sequence[int]], trees: Sequence[DraftTree]) -> dict[int, Tensor]:
        """Recurrent layer -> its states [B,N,HV,V,K] after every valid node's own path; padding nodes get zeros."""
        plain, wanted = self._at_nodes(committed, trees)
        found: dict[int, Tensor] = {}
        for layer, states in enumerate(plain.states):
            if states.numel():
                found[layer] = states.new_zeros((len(trees), trees[0].num_nodes, *states.shape[2:]))
                for row, node, place, position in wanted:
                    found[layer][row, node] = states[place, position]
        return found

    def _at_nodes(
        self, committed: Sequence[Sequence[int]], trees: Sequence[DraftTree]
    ) -> tuple[PlainOutput, list[tuple[int, int, int, int]]]:
        """The texts along all paths to leaves, and (row, node, text, position) of every valid node."""
        texts: list[Text] = []
        places: dict[Text, int] = {}
        wanted: list[tuple[int, int, int, int]] = []
        for row, tree in enumerate(trees):
            for node in range(tree.num_nodes):
                if tree.valid[node] and (not tree.children(node) or node == 0):
                    path = path_to(tree, node)
                    text = (*committed[row], *(tree.tokens[i] for i in path))
                    place = places.setdefault(text, len(texts))
                    if place == len(texts):
                        texts.append(text)
                    wanted += [(row, i, place, len(committed[row]) + depth) for depth, i in enumerate(path)]
        key = tuple(texts)
        if key != self._last_key:
            self._last_key, self._last = key, self.forward(texts)
        assert self._last is not None
        return self._last, wanted
