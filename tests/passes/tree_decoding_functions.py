"""Functions in the style of public tree-decoding code, with inputs and ranges: paths and slots padded with -1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from specc.ir.port import ValueRange

Inputs = dict[str, torch.Tensor]
Ranges = Mapping[str, ValueRange | tuple[int, int]]
NODES, PATHS, DEPTH, HIDDEN = 7, 4, 3, 5
PATH = ValueRange(-1, NODES - 1, "wrap")
PAD = ValueRange(-1, NODES - 1, "pad")


def paths() -> torch.Tensor:
    return torch.tensor([[0, 1, 3], [0, 1, 4], [0, 2, -1], [0, -1, -1]])


def padded_candidates(tree_tokens: torch.Tensor, retrieve: torch.Tensor) -> torch.Tensor:
    """The token of every path node; a pad token behind the last node is what -1 finds."""
    extended = torch.cat([tree_tokens, torch.full_like(tree_tokens[:1], -100)])
    return extended[retrieve]


def path_logits(logits: torch.Tensor, retrieve: torch.Tensor) -> torch.Tensor:
    return logits[0, retrieve]


def accepted_rows(cache: torch.Tensor, select: torch.Tensor) -> torch.Tensor:
    """K or V rows [layers, heads, rows, size] along the accepted path."""
    return cache[:, :, select]


def newest_row(cache: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """The row before `length`: none of them at 0 reads the last one, as eager torch does."""
    return cache[length - 1]


def last_token_logits(logits: torch.Tensor) -> torch.Tensor:
    return logits[:, -1]


def last_two(logits: torch.Tensor) -> torch.Tensor:
    return logits[..., -2:, :]


def all_but_last(tokens: torch.Tensor) -> torch.Tensor:
    return tokens[:-1]


def narrow_from_end(tokens: torch.Tensor) -> torch.Tensor:
    return torch.narrow(tokens, 0, -3, 2)


def flat_take(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.take(table, index)


def along_dim(scores: torch.Tensor, parent: torch.Tensor) -> torch.Tensor:
    return torch.take_along_dim(scores, parent, 1)


def put_nodes(table: torch.Tensor, place: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return table.index_put((place,), rows)


def put_in_place(table: torch.Tensor, place: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    out = table.clone()
    out.index_put_((place,), rows)
    return out * 2


def mask_filter(tokens: torch.Tensor, retrieve: torch.Tensor) -> torch.Tensor:
    """Paths without padding, then their tokens: the bool mask is no row number."""
    rows = retrieve.clamp(min=0)
    return torch.where(retrieve >= 0, tokens[rows], torch.zeros_like(tokens[rows]))


@dataclass(frozen=True)
class Case:
    function: Callable[..., Any]
    inputs: Inputs
    ranges: Ranges


def logits_table() -> torch.Tensor:
    return torch.arange(2.0 * NODES * HIDDEN).reshape(2, NODES, HIDDEN)


TOKENS = torch.arange(10, 10 + NODES)
WRAPS: dict[str, Case] = {
    "pad token behind the last": Case(
        padded_candidates, {"tree_tokens": TOKENS, "retrieve": paths()}, {"retrieve": PATH}
    ),
    "logits by retrieve indices": Case(
        path_logits, {"logits": logits_table(), "retrieve": paths()}, {"retrieve": PATH}
    ),
    "cache rows by path": Case(
        accepted_rows,
        {"cache": torch.arange(2.0 * 2 * NODES * 3).reshape(2, 2, NODES, 3), "select": torch.tensor([0, 2, -1])},
        {"select": PATH},
    ),
    "row before the length": Case(
        newest_row, {"cache": logits_table()[0], "length": torch.tensor([3, 0, NODES])}, {"length": (0, NODES)}
    ),
    "last token": Case(last_token_logits, {"logits": logits_table()}, {}),
    "last two": Case(last_two, {"logits": logits_table()}, {}),
    "all but the last": Case(all_but_last, {"tokens": TOKENS}, {}),
    "narrow from the end": Case(narrow_from_end, {"tokens": TOKENS}, {}),
    "take": Case(
        flat_take, {"table": logits_table()[0], "index": torch.tensor([[-1, 3], [34, -35]])}, {"index": (-35, 34)}
    ),
    "take_along_dim": Case(
        along_dim, {"scores": logits_table()[:, :, 0], "parent": torch.tensor([[-1, 0], [5, -7]])}, {"parent": (-7, 6)}
    ),
    "index_put": Case(
        put_nodes,
        {"table": logits_table()[0], "place": torch.tensor([1, -1]), "rows": -torch.ones(2, HIDDEN)},
        {"place": PATH},
    ),
    "index_put in place": Case(
        put_in_place,
        {"table": logits_table()[0], "place": torch.tensor([1, -1]), "rows": -torch.ones(2, HIDDEN)},
        {"place": PATH},
    ),
}


def parent_scores(scores: torch.Tensor, parent: torch.Tensor) -> torch.Tensor:
    """Cumulative scores: each child adds its parent's; the root has parent -1."""
    return scores + scores.gather(1, parent)


def embed_drafts(table: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """Draft tokens with placeholder -1 reach the embedding (vllm-ascend issue 10305)."""
    return F.embedding(draft, table)


def pick_rows(table: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    return table.index_select(0, place)


def store_rows(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return cache.index_copy(0, slots, rows)


def scatter_rows(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    index = slots.unsqueeze(1).expand(-1, cache.shape[1])
    return cache.scatter(0, index, rows)


def store_in_place(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    out = cache.clone()
    out.index_copy_(0, slots, rows)
    return out + 0


SLOTS = torch.tensor([4, -1, 0])
ROWS = -torch.arange(1.0, 3 * HIDDEN + 1).reshape(3, HIDDEN)
RAISES: dict[str, Case] = {
    "gather": Case(
        parent_scores,
        {"scores": logits_table()[:, :, 0], "parent": torch.tensor([[-1, 0, 0, 1, 2, 2, 5], [-1, 0, 1, 2, 3, 4, 5]])},
        {},
    ),
    "embedding": Case(embed_drafts, {"table": logits_table()[0], "draft": torch.tensor([[2, -1]])}, {}),
    "index_select": Case(pick_rows, {"table": logits_table()[0], "place": SLOTS}, {}),
    "index_copy": Case(store_rows, {"cache": logits_table()[0], "slots": SLOTS, "rows": ROWS}, {}),
    "scatter": Case(scatter_rows, {"cache": logits_table()[0], "slots": SLOTS, "rows": ROWS}, {}),
    "index_copy_": Case(store_in_place, {"cache": logits_table()[0], "slots": SLOTS, "rows": ROWS}, {}),
}
INDEX_NAMES = {"gather": "parent", "embedding": "draft", "index_select": "place"}
