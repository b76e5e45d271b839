"""Ranking draft candidates and packing the chosen ones into a tree."""

from __future__ import annotations

import math

import torch

from specc.backends.ascend.ops.aten import argmax


def ordered_scores(scores: torch.Tensor) -> torch.Tensor:
    """The keys that scores are ordered by: NaN counts as -inf, so that both come last."""
    return torch.where(torch.eq(scores, scores), scores, torch.full_like(scores, -math.inf))


def stable_topk(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best of the last dim by (score descending, index ascending): values and int64 indices.

    GE's TopK leaves the order of ties open. NaN counts as -inf; both come last.
    """
    keys = ordered_scores(scores)
    number = torch.arange(keys.shape[-1], device=keys.device)
    # -inf is kept for places that were taken already.
    left = keys.clamp(min=torch.finfo(keys.dtype).min)
    taken = torch.full_like(left, -math.inf)
    picked: list[torch.Tensor] = []
    for _ in range(k):
        best = argmax(left, -1, True)
        picked.append(best)
        left = torch.where(number == best, taken, left)
    indices = torch.cat(picked, dim=-1)
    return values_at(keys, indices), indices


def values_at(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """x[…, index[…]] along the last dim; GE gathers elements of float64 only as rows of one column."""
    if x.dtype != torch.float64:
        return torch.gather(x, -1, index)
    size = x.shape[-1]
    table = x.reshape(-1)
    first = torch.arange(0, table.shape[0], size, device=x.device).reshape(*x.shape[:-1], 1)
    return table.index_select(0, (index + first).reshape(-1)).reshape(index.shape)


def score_rank(scores: torch.Tensor) -> torch.Tensor:
    """int64 [B,C]: rank_i = #(s_j > s_i) + #(s_j = s_i and j < i), NaN and -inf last."""
    keys = ordered_scores(scores)
    mine, other = keys.unsqueeze(-1), keys.unsqueeze(-2)
    number = torch.arange(keys.shape[-1], device=keys.device)
    earlier = number.unsqueeze(0) < number.unsqueeze(1)
    before = (other > mine) | ((other == mine) & earlier)
    return before.to(torch.float32).sum(dim=-1).to(torch.int64)


def pack_tree(
    chosen: torch.Tensor,
    token: torch.Tensor,
    parent: torch.Tensor,
    log_prob: torch.Tensor,
    root: torch.Tensor,
    nodes: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The draft tree of the chosen candidates: tokens, parent, valid, log_prob, source, all [B,nodes].

    chosen bool, token, parent int64, log_prob [B,C]; a parent outside [0, C) is the root; root int64 [B]. Node 0 is the
    root, then the chosen candidates in order, then padding; `source` is 1 + the candidate of a node, else 0.
    """
    count, whole = chosen.shape[1], torch.int64
    number = chosen.to(whole).cumsum(dim=1) * chosen.to(whole)
    has_parent = (parent >= 0) & (parent < count)
    above = torch.gather(number, 1, parent.clamp(0, count - 1))
    above = torch.where(has_parent, above, torch.zeros_like(above))
    place = torch.arange(nodes, device=chosen.device).unsqueeze(-1)
    hit = (number.unsqueeze(1) == place) & chosen.unsqueeze(1)
    filled, candidate = hit.any(dim=-1), argmax(hit, -1)
    first = place.squeeze(-1) == 0
    tokens = packed(token, candidate, filled)
    tokens = torch.where(first, root.unsqueeze(1), tokens)
    parents = packed(above, candidate, filled)
    parents = torch.where(first, torch.full_like(parents, -1), parents)
    source = torch.where(filled, candidate + 1, torch.zeros_like(candidate))
    return tokens, parents, filled | first, packed(log_prob, candidate, filled), source


def packed(values: torch.Tensor, candidate: torch.Tensor, filled: torch.Tensor) -> torch.Tensor:
    """values[b, candidate[b, i]] for the nodes that are filled, 0 for the others."""
    found = torch.gather(values, 1, candidate)
    return torch.where(filled, found, torch.zeros_like(found))
