"""Ranking draft candidates and packing the chosen ones into a tree."""

from __future__ import annotations

import math

import torch

from specc.ir.op import op


@op(
    "int_table(Tensor like, int[] values, int[] shape) -> Tensor",
    fake=lambda like, values, shape: like.new_empty(shape, dtype=torch.int64),
)
def int_table(like: torch.Tensor, values: list[int], shape: list[int]) -> torch.Tensor:
    """int64 constant of `shape` on the device of `like`, row-major `values` (structure that the spec fixes)."""
    return torch.tensor(values, dtype=torch.int64, device=like.device).reshape(shape)


def ordered_scores(scores: torch.Tensor) -> torch.Tensor:
    """The keys that scores are ordered by: NaN counts as -inf, so that both come last (design 03)."""
    return torch.where(scores.isnan(), torch.full_like(scores, -math.inf), scores)


def _top_fake(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (*scores.shape[:-1], k)
    return scores.new_empty(shape), scores.new_empty(shape, dtype=torch.int64)


@op("stable_topk(Tensor scores, int k) -> (Tensor, Tensor)", fake=_top_fake, rows=("scores",))
def stable_topk(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best of the last dim by (score descending, index ascending), best first: values and int64 indices.

    NaN counts as -inf (and is returned so); both come last. `aten.topk` leaves the order of ties open, which is
    what makes a draft tree lose parents (design 03). 1 <= k <= size.
    """
    keys = ordered_scores(scores)
    # -inf is kept for places that were taken already.
    left = keys.clamp(min=torch.finfo(keys.dtype).min)
    picked: list[torch.Tensor] = []
    for _ in range(k):
        best = left.argmax(dim=-1, keepdim=True)
        picked.append(best)
        left = left.scatter(-1, best, -math.inf)
    indices = torch.cat(picked, dim=-1)
    return torch.gather(keys, -1, indices), indices


@op(
    "score_rank(Tensor scores) -> Tensor",
    fake=lambda scores: scores.new_empty(scores.shape, dtype=torch.int64),
)
def score_rank(scores: torch.Tensor) -> torch.Tensor:
    """int64 [B,C]: each candidate's place by (score descending, index ascending), NaN and -inf last.

    rank_i = #(s_j > s_i) + #(s_j = s_i and j < i). With s_parent >= s_child and parent < child, the first M ranks
    hold every parent of their members: ancestor-closed by construction (design 03, I2).
    """
    keys = ordered_scores(scores)
    mine, other = keys.unsqueeze(-1), keys.unsqueeze(-2)
    number = torch.arange(keys.shape[-1], device=keys.device)
    earlier = number.unsqueeze(0) < number.unsqueeze(1)
    return ((other > mine) | ((other == mine) & earlier)).sum(dim=-1)


def _pack_fake(
    chosen: torch.Tensor,
    token: torch.Tensor,
    parent: torch.Tensor,
    log_prob: torch.Tensor,
    root: torch.Tensor,
    nodes: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    shape = (chosen.shape[0], nodes)
    integers = [token.new_empty(shape) for _ in range(3)]
    return integers[0], integers[1], chosen.new_empty(shape), log_prob.new_empty(shape), integers[2]


@op(
    "pack_tree(Tensor chosen, Tensor token, Tensor parent, Tensor log_prob, Tensor root, int nodes) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    fake=_pack_fake,
)
def pack_tree(
    chosen: torch.Tensor,
    token: torch.Tensor,
    parent: torch.Tensor,
    log_prob: torch.Tensor,
    root: torch.Tensor,
    nodes: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The draft tree of the chosen candidates: tokens, parent, valid, log_prob, source, all [B,nodes].

    chosen bool, token, parent int64, log_prob [B,C]; parent is a lower candidate number, or any number outside
    [0, C) for a child of the root; root int64 [B]. Node 0 is the root (parent -1), then the chosen candidates in
    candidate order with parents renumbered, then padding (token 0, parent 0, log_prob 0, valid False). `source` is
    1 + the candidate of a node, 0 for the root and padding. `chosen` must be ancestor-closed and hold fewer than
    `nodes` members.
    """
    count = chosen.shape[1]
    number = chosen.cumsum(dim=1) * chosen
    has_parent = (parent >= 0) & (parent < count)
    above = torch.gather(number, 1, torch.where(has_parent, parent, torch.zeros_like(parent)))
    above = torch.where(has_parent, above, torch.zeros_like(above))
    place = torch.arange(nodes, device=chosen.device).unsqueeze(-1)
    hit = (number.unsqueeze(1) == place) & chosen.unsqueeze(1)
    filled, candidate = hit.any(dim=-1), hit.to(torch.int64).argmax(dim=-1)

    def packed(values: torch.Tensor) -> torch.Tensor:
        return torch.where(filled, torch.gather(values, 1, candidate), torch.zeros_like(candidate).to(values.dtype))

    first = place.squeeze(-1) == 0
    tokens = torch.where(first, root.unsqueeze(1), packed(token))
    parents = torch.where(first, torch.full_like(candidate, -1), packed(above))
    source = torch.where(filled, candidate + 1, torch.zeros_like(candidate))
    return tokens, parents, filled | first, packed(log_prob), source


def _lookup_fake(
    history: torch.Tensor, length: torch.Tensor, root: torch.Tensor, nodes: int, *_: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shape = (history.shape[0], nodes)
    return history.new_empty(shape), history.new_empty(shape), history.new_empty(shape, dtype=torch.bool)


@op(
    "lookup_tree(Tensor history, Tensor length, Tensor root, int nodes, int steps, int top_k, int least, int most) "
    "-> (Tensor, Tensor, Tensor)",
    fake=_lookup_fake,
)
def lookup_tree(
    history: torch.Tensor,
    length: torch.Tensor,
    root: torch.Tensor,
    nodes: int,
    steps: int,
    top_k: int,
    least: int,
    most: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Prompt lookup's tree: tokens, parent, valid [B,nodes] as `pack_tree` has them.

    The text of a row is history[: length + 1]. What followed the latest nodes - 1 places at which its longest suffix of
    least … most tokens stood before is merged into a trie, latest first, `steps` tokens each, until `nodes` are there:
    a token that would be one child more than top_k ends its continuation (design 03, "Prompt lookup").
    """
    made = [
        _lookup_row(row[: int(last) + 1].tolist(), nodes, steps, top_k, least, most)
        for row, last in zip(history, length, strict=True)
    ]
    tokens, parent = (torch.tensor([row[part] for row in made], device=history.device) for part in (0, 1))
    tokens[:, 0] = root
    filled = torch.tensor([row[2] for row in made], device=history.device)
    return tokens, parent, torch.arange(nodes, device=history.device) < filled.unsqueeze(1)


def _lookup_row(
    text: list[int], nodes: int, steps: int, top_k: int, least: int, most: int
) -> tuple[list[int], list[int], int]:
    """(tokens, parents, how many nodes there are) of one text, padded with 0."""
    places: list[int] = []
    for size in range(min(most, len(text)), least - 1, -1):
        places = [at for at in range(len(text) - 1, size - 1, -1) if text[at - size : at] == text[-size:]]
        if places:
            break
    children: list[dict[int, int]] = [{}]
    tokens, parents = [0], [-1]
    for at in places[: nodes - 1]:
        node = 0
        for token in text[at : at + steps]:
            if token not in children[node]:
                if len(children[node]) == top_k or len(tokens) == nodes:
                    break
                children[node][token] = len(tokens)
                tokens.append(token)
                parents.append(node)
                children.append({})
            node = children[node][token]
    padding = [0] * (nodes - len(tokens))
    return tokens + padding, parents + padding, len(tokens)
