"""The drafts of one step: planted around the plain continuation, or taken from the module, as trees and as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

from specc.check.machines import Results
from specc.check.subject import Subject
from specc.testing.draft_tree import DraftTree, make_tree
from specc.testing.planted import PlantedShape, plant_tree
from specc.testing.tensors import tree_tensors


def shape_of(subject: Subject) -> PlantedShape:
    """What trees the variation can verify."""
    spec = subject.spec
    width = 1 if spec.is_chain else max(spec.draft.top_k, 2)
    return PlantedShape(spec.num_nodes, spec.depth, width, early_error=0.1, short=0.2)


def truncated(tree: DraftTree, budget: int) -> DraftTree:
    """The first `budget` drafted nodes (which are closed under parents), the rest padding."""
    kept = min(tree.num_valid, budget + 1)
    return make_tree(tree.tokens[:kept], tree.parent[:kept], tree.num_nodes)


def planted(subject: Subject, texts: Sequence[Sequence[int]], seed: int, budget: int) -> list[DraftTree]:
    """One tree per text (whose last token is the root), around what plain greedy decoding goes on with."""
    shape, made = shape_of(subject), []
    for row, text in enumerate(texts):
        rng = Random(seed * 4 + row)
        known = list(text) or [0]
        continuation = [known[-1], *subject.plain.continuation(known, shape.num_steps)]
        made.append(truncated(plant_tree(continuation, subject.vocabulary, shape, rng), budget))
    return made


def as_bag(subject: Subject, trees: Sequence[DraftTree], seed: int) -> dict[str, Tensor | None]:
    """Tensors of the trees; for the rule true_q also some law of every node's children."""
    tokens, parent, valid = tree_tensors(trees)
    bag: dict[str, Tensor | None] = {"tokens": tokens, "valid": valid}
    if not subject.spec.is_chain:
        bag["parent"] = parent
    if needs_law(subject):
        law = torch.softmax(2 * _noise(tokens.shape, subject.vocabulary, seed), -1)
        for row, tree in enumerate(trees):
            for node in range(1, tree.num_nodes):
                if tree.valid[node]:  # drafted tokens have some mass under their own law
                    law[row, tree.parent[node], tree.tokens[node]] += 0.3
        bag["q_probs"] = subject.as_computed(law / law.sum(-1, keepdim=True))
    return bag


def _noise(places: torch.Size, vocabulary: int, seed: int) -> Tensor:
    """[B,N,V] normal values; a node's are the same however many rows and nodes there are beside it.

    So that a module with fewer nodes, which judges the same chain, judges it by the same law.
    """
    rows, nodes = places
    noise = torch.empty((rows, nodes, vocabulary), dtype=torch.float64)
    for row in range(rows):
        generator = torch.Generator().manual_seed(seed + row)
        for node in range(nodes):
            torch.randn(vocabulary, generator=generator, dtype=torch.float64, out=noise[row, node])
    return noise


def needs_law(subject: Subject) -> bool:
    """Whether accept reads the drafter's law."""
    accept = subject.spec.accept
    return accept.method == "rejection" and accept.rule == "true_q" and subject.spec.sampling.temperature > 0.0


def own(results: Results) -> dict[str, Tensor | None]:
    """The module's draft as a bag."""
    names = ("tokens", "parent", "valid", "log_probs", "q_probs")
    return {name: results[name] for name in names if name in results}
