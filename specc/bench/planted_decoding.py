"""Decoding with simulated drafts: trees around the known plain text, with planted errors, through a module's steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

from specc.runtime.lossless import RELATIVE_BOUND, Difference
from specc.spec.model import Spec
from specc.testing.draft_tree import DraftTree, make_tree
from specc.testing.planted import PlantedShape, plant_tree
from specc.testing.tensors import tree_tensors

CHANCES = {"nothing_right": 0.06, "early_error": 0.12, "decoy_first": 0.6, "short": 0.2}
"""Of the planted errors; see `PlantedShape`."""


@dataclass(slots=True)
class CellResult:
    """What a run of planted steps showed. A step is one row of one verify; `branches` accept a node that is not its
    parent's first child, `moved` a path other than 0, 1, …; `nothing` accept no drafted node."""

    prompts: int = 0
    tokens: int = 0
    steps: int = 0
    accepted: int = 0
    branches: int = 0
    moved: int = 0
    nothing: int = 0
    differences: list[Difference] = field(default_factory=list)
    plain_differences: int = 0

    @property
    def branch_share(self) -> float:
        """Share of steps that accept a branch."""
        return self.branches / self.steps if self.steps else 0.0

    @property
    def summary(self) -> str:
        """One line."""
        mean = (self.accepted + self.steps) / max(self.steps, 1)
        return (
            f"{len(self.differences)} of {self.tokens} tokens differ, {self.branch_share:.0%} of {self.steps} steps "
            f"accept a branch, acceptance_length {mean:.2f} (simulated)"
        )

    def count(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Add a step that accepted `path` (from node 0 on)."""
        self.steps += 1
        self.accepted += len(path) - 1
        self.nothing += len(path) == 1
        self.branches += any(tree.parent.index(tree.parent[node]) < node for node in path[1:])
        self.moved += list(path) != list(range(len(path)))

    def as_json(self) -> dict[str, Any]:
        """JSON-ready."""
        names = ("prompts", "tokens", "steps", "accepted", "branches", "moved", "nothing", "plain_differences")
        counts = {name: getattr(self, name) for name in names}
        return {
            **counts,
            "branch_share": round(self.branch_share, 4),
            "differences": [item.as_json() for item in self.differences],
        }


@dataclass(slots=True)
class _Batch:
    """Rows under way: `done[b]` tokens of row b's plain text have been emitted."""

    module: Any
    weights: Any
    spec: Spec
    prompts: Sequence[Sequence[int]]
    plain: Sequence[Sequence[int]]
    numbers: Sequence[int]
    tokens: int
    rng: Random
    result: CellResult
    state: Any = None
    done: list[int] = field(default_factory=list)

    def start(self) -> None:
        """Prefill every prompt."""
        self.state, self.done = self.module.init_state(len(self.prompts)), [0] * len(self.prompts)
        self._prefill([list(prompt) for prompt in self.prompts])

    def _prefill(self, texts: Sequence[Sequence[int]]) -> None:
        """Texts (empty: the row is left alone) whose next token is compared at once."""
        width = max(map(len, texts))
        ids = torch.tensor([[*text, *[0] * (width - len(text))] for text in texts])
        lengths = torch.tensor([len(text) for text in texts])
        self.state = self.module.prefill(self.weights, self.state, ids, lengths)[0]
        for row, text in enumerate(texts):
            if text:
                self._left(row, self.tokens - self.done[row] - 1)
                self._compare(row, [int(self.state.root_token[row])])

    def _left(self, row: int, count: int) -> None:
        remaining, finished = self.state.remaining.clone(), self.state.finished.clone()
        remaining[row], finished[row] = count, finished[row] | (count <= 0)
        self.state = self.state._replace(remaining=remaining, finished=finished)

    def _compare(self, row: int, new: Sequence[int]) -> None:
        """Count the tokens that are the plain text's; after the first other one, go on from the plain text."""
        for token in new:
            wanted = self.plain[row][self.done[row]]
            self.done[row] += 1
            self.result.tokens += 1
            if token != wanted:
                self.result.differences.append(self._difference(row, wanted, token))
                self.state = self.module.reset(self.state, [row])
                if self.done[row] < self.tokens:
                    known: list[list[int]] = [[] for _ in self.prompts]
                    known[row] = [*self.prompts[row], *self.plain[row][: self.done[row]]]
                    self._prefill(known)
                return

    def _difference(self, row: int, wanted: int, token: int) -> Difference:
        text = [*self.prompts[row], *self.plain[row][: self.done[row] - 1]]
        state = self.module.init_state(1)
        logits = self.module.prefill(self.weights, state, torch.tensor([text]), torch.tensor([len(text)]))[1][0]
        best, largest = logits.double().topk(2).values, float(logits.abs().max())
        bound = RELATIVE_BOUND[self.spec.runtime.dtype] * largest
        gap, margin = abs(float(logits[wanted] - logits[token])), float(best[0] - best[1])
        number = self.numbers[row]
        return Difference(number, str(number), self.done[row] - 1, wanted, token, margin, gap, bound)

    def tree(self, row: int) -> DraftTree:
        """The row's next planted tree; only the root where the row is finished."""
        root = int(self.state.root_token[row])
        if bool(self.state.finished[row]):
            return make_tree([root], [-1], self.spec.num_nodes)
        width = 1 if self.spec.is_chain else max(self.spec.draft.top_k, 2)
        shape = PlantedShape(self.spec.num_nodes, self.spec.depth, width, **CHANCES)
        known = self.plain[row][self.done[row] : self.done[row] + self.spec.depth]
        return plant_tree([root, *known], self.module.VOCAB_SIZE, shape, self.rng)

    def step(self) -> None:
        """One speculative step of all rows."""
        trees = [self.tree(row) for row in range(len(self.prompts))]
        tokens, parent, valid = tree_tensors(trees)
        live = (~self.state.finished).tolist()
        values = {"tokens": tokens, "parent": parent, "valid": valid}
        draft = self.module.Draft(**{name: values[name] for name in self.module.Draft._fields})
        above = None if self.spec.is_chain else parent
        self.state, verified = self.module.verify(self.weights, self.state, tokens, above, valid)
        self.state, accepted = self.module.accept(self.state, verified, draft)
        self.state = self.module.commit(self.state, verified, accepted)
        emitted, lengths = accepted.emitted.tolist(), accepted.accept_length.tolist()
        for row, tree in enumerate(trees):
            if live[row]:
                self.result.count(tree, accepted.path[row, : lengths[row] + 1].tolist())
                self._compare(row, accepted.emitted_tokens[row, : emitted[row]].tolist())


def decode_planted(
    module: Any,
    weights: Any,
    spec: Spec,
    prompts: Sequence[Sequence[int]],
    plain: Sequence[Sequence[int]],
    tokens: int,
    seed: int = 0,
) -> CellResult:
    """Decode `tokens` new tokens of every prompt with planted drafts and compare them with `plain`, which must be
    spec.depth longer (so that the last drafts can be right) and hold no stop token of the spec."""
    result, rng, size = CellResult(prompts=len(prompts)), Random(seed), module.MAX_BATCH_SIZE
    for first in range(0, len(prompts), size):
        part = slice(first, first + size)
        numbers = range(first, min(first + size, len(prompts)))
        batch = _Batch(module, weights, spec, prompts[part], plain[part], numbers, tokens, rng, result)
        with torch.no_grad():
            batch.start()
            while not bool(batch.state.finished.all()):
                batch.step()
    return result
