"""Between the plain trees of `specc.testing` and the tensors of generated modules. The only module here with torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specc.testing.draft_tree import DraftTree
from specc.testing.oracles import Acceptance


def tree_tensors(
    trees: Sequence[DraftTree], device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens int64, parent int64 and valid bool, each [B,N]. Raises ValueError if the trees differ in N."""
    if len({tree.num_nodes for tree in trees}) != 1:
        raise ValueError("the trees of a batch have the same number of nodes")
    tokens = torch.tensor([tree.tokens for tree in trees], dtype=torch.int64, device=device)
    parent = torch.tensor([tree.parent for tree in trees], dtype=torch.int64, device=device)
    valid = torch.tensor([tree.valid for tree in trees], dtype=torch.bool, device=device)
    return tokens, parent, valid


def trees_of(tokens: torch.Tensor, parent: torch.Tensor | None, valid: torch.Tensor) -> list[DraftTree]:
    """Return the B trees of tensors [B,N]; `parent` None stands for chains, whose padding hangs at node 0."""
    found = []
    for row in range(tokens.shape[0]):
        marks = tuple(bool(mark) for mark in valid[row].tolist())
        chain = [node - 1 if node == 0 or ok else 0 for node, ok in enumerate(marks)]
        above = chain if parent is None else parent[row].tolist()
        found.append(DraftTree(tuple(tokens[row].tolist()), tuple(above), marks))
    return found


def acceptances(
    path: torch.Tensor, accept_length: torch.Tensor, bonus: torch.Tensor, stopped: torch.Tensor
) -> list[Acceptance]:
    """Return what each row accepted, from path [B,P] and accept_length, bonus, stopped [B]."""
    rows = zip(path.tolist(), accept_length.tolist(), bonus.tolist(), stopped.tolist(), strict=True)
    return [Acceptance(tuple(nodes), count, token, bool(end)) for nodes, count, token, end in rows]
