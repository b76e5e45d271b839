"""Ranking draft candidates and packing the chosen ones into a tree, a launch each; tables that the spec fixes."""

from __future__ import annotations

import torch

from specc.backends.triton.kernels.draft import pack_nodes, rank_scores, text_tree
from specc.backends.triton.launch.core import as_bytes, power_of_two

Tensor = torch.Tensor

RANKED = 16
"""Candidates that one program ranks."""
_TABLES: dict[tuple[torch.device, tuple[int, ...], tuple[int, ...]], Tensor] = {}


def int_table(like: Tensor, values: list[int], shape: list[int]) -> Tensor:
    """int64 constant of `shape` on the device of `like`, made once: a captured graph can't copy from the host."""
    key = (like.device, tuple(values), tuple(shape))
    if key not in _TABLES:
        _TABLES[key] = torch.tensor(values, dtype=torch.int64).reshape(shape).to(like.device)
    return _TABLES[key]


def score_rank(scores: Tensor) -> Tensor:
    """int64 [B,C]: each candidate's place by (score descending, index ascending), NaN and -inf last."""
    batch, count = scores.shape
    rank = torch.empty(scores.shape, dtype=torch.int64, device=scores.device)
    block = min(RANKED, power_of_two(count))
    rank_scores[(-(-count // block), batch)](
        scores.contiguous(), rank, count, CP=power_of_two(count), RB=block, num_warps=4
    )
    return rank


def pack_tree(
    chosen: Tensor, token: Tensor, parent: Tensor, log_prob: Tensor, root: Tensor, nodes: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The draft tree of the chosen candidates [B,C]: tokens, parent, valid, log_prob, source, all [B,nodes]."""
    batch, count = chosen.shape
    shape, device = (batch, nodes), chosen.device
    tokens, parents, source = (torch.empty(shape, dtype=torch.int64, device=device) for _ in range(3))
    valid = torch.empty(shape, dtype=torch.bool, device=device)
    log_probs = torch.empty(shape, dtype=log_prob.dtype, device=device)
    pack_nodes[(batch,)](
        as_bytes(chosen, chosen),
        token.contiguous(),
        parent.contiguous(),
        log_prob.contiguous(),
        root.contiguous(),
        tokens,
        parents,
        as_bytes(valid, valid),
        log_probs,
        source,
        count,
        nodes,
        CP=power_of_two(count),
        NB=power_of_two(nodes),
        num_warps=1 if count <= 128 else 4,
    )
    return tokens, parents, valid, log_probs, source


def lookup_tree(
    history: Tensor, length: Tensor, root: Tensor, nodes: int, steps: int, top_k: int, least: int, most: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Prompt lookup's tree from texts [B,C]: tokens, parent, valid, all [B,nodes]."""
    batch, count = history.shape
    tokens, parents = (torch.empty((batch, nodes), dtype=torch.int64, device=history.device) for _ in range(2))
    valid = torch.empty((batch, nodes), dtype=torch.bool, device=history.device)
    text_tree[(batch,)](
        history.contiguous(),
        length.contiguous(),
        root.contiguous(),
        tokens,
        parents,
        as_bytes(valid, valid),
        nodes,
        LEAST=least,
        MOST=most,
        MATCHES=nodes - 1,
        STEPS=steps,
        CHILDREN=top_k,
        COUNT=count,
        SIZE=power_of_two(count, 32),
        WIDTH=power_of_two(nodes - 1),
        DEPTH=power_of_two(steps),
        NODES=power_of_two(nodes),
        num_warps=8,
    )
    return tokens, parents, valid
