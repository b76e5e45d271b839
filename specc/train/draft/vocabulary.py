"""The draft vocabulary: the tokens that the target itself emits most often, and the tables of a checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor


def token_counts(continuations: Tensor, vocab_size: int) -> Tensor:
    """How often each target id occurs, int64 [V]; `continuations` holds the target's own tokens, of any shape."""
    return torch.bincount(continuations.flatten().long(), minlength=vocab_size)


def draft_vocabulary(counts: Tensor, size: int) -> Tensor:
    """The `size` most frequent ids, ascending; among equal counts the smaller id."""
    order = torch.sort(counts, descending=True, stable=True).indices
    return order[:size].sort().values


def vocabulary_tables(ids: Tensor, vocab_size: int) -> dict[str, Tensor]:
    """`d2t` int64 [Vd] (target id = draft id + d2t) and `t2d` bool [V] of ascending target ids."""
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": mask}


def coverage(counts: Tensor, ids: Tensor) -> float:
    """The share of emitted tokens that the draft vocabulary holds."""
    total = int(counts.sum())
    return float(counts[ids].sum()) / total if total else 0.0
