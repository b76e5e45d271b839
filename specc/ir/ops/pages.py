"""Ops of paged caches: pages taken for rows that grow, and the buffer level's row moves and attention through a table.

A pool [P,page,…] holds the pages of all sequences; block_table int32 [B,blocks] names them in order: row i of sequence
b lies in page block_table[b, i // page] at i % page. page_owner int32 [P] says whose a page is: b + 1, or 0 for a free
one. Page 0 is never given away. A table's entries behind the pages that a sequence holds name it, so that whatever
reads or writes there touches nobody's rows. Only the pass page-caches introduces these, but for the last two:
those only a device backend makes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specc.ir.op import IndexOperand, op
from specc.ir.ops.attention import rope
from specc.ir.ops.buffer import causal_attention_cached, tree_attention_cached
from specc.ir.ops.linear import fused_linear

_BUFFER = ("buffer",)
_THROUGH = (IndexOperand("block_table", "pool", 0),)
_KEYS = (IndexOperand("block_table", "k_pool", 0), IndexOperand("block_table", "v_pool", 0))


@op(
    "take_pages_(Tensor(a!) block_table, Tensor(b!) page_owner, Tensor length, Tensor? count, int rows, int page) "
    "-> ()",
    fake=lambda block_table, page_owner, length, count, rows, page: None,
    levels=_BUFFER,
    indices=(IndexOperand("block_table", "page_owner", 0),),
    meta={"reads_written": True},
)
def take_pages_(
    block_table: torch.Tensor,
    page_owner: torch.Tensor,
    length: torch.Tensor,
    count: torch.Tensor | None,
    rows: int,
    page: int,
) -> None:
    """Every sequence gets the pages that it lacks for length[b] + count[b] rows (None: length[b] + `rows`).

    The lowest free pages are taken, sequence by sequence. Pages are only added: those that a sequence holds stay.
    Raises RuntimeError where no page is free, which a pool of a table's width of pages for every sequence excludes.
    """
    for row in range(block_table.shape[0]):
        wanted = int(length[row]) + (rows if count is None else int(count[row]))
        held = int((block_table[row] > 0).sum())
        for place in range(held, -(-wanted // page)):
            free = torch.nonzero(page_owner[1:] == 0)
            if not len(free):
                raise RuntimeError(f"no page is free for sequence {row}, which holds {place} pages")
            block_table[row, place] = number = int(free[0]) + 1
            page_owner[number] = row + 1


def _rows_of(pool: torch.Tensor, block_table: torch.Tensor) -> torch.Tensor:
    """The caches [B,blocks*page,…] that a table names: a copy."""
    return pool[block_table.long()].flatten(1, 2)


@op(
    "append_pages_(Tensor(a!) pool, Tensor block_table, Tensor rows, Tensor start, Tensor? count=None) -> ()",
    fake=lambda pool, block_table, rows, start, count=None: None,
    levels=_BUFFER,
    indices=_THROUGH,
    meta={"identity_when_zero": "count", "reads_written": True},
)
def append_pages_(
    pool: torch.Tensor,
    block_table: torch.Tensor,
    rows: torch.Tensor,
    start: torch.Tensor,
    count: torch.Tensor | None = None,
) -> None:
    """`append_rows_` through a table: row start[b] + j of sequence b = rows[b, j] for j < count[b] (None: all rows)."""
    page = pool.shape[1]
    for row in range(rows.shape[0]):
        for place in range(rows.shape[1] if count is None else int(count[row])):
            at = int(start[row]) + place
            pool[int(block_table[row, at // page]), at % page] = rows[row, place]


@op(
    "commit_pages_(Tensor(a!) pool, Tensor block_table, Tensor path, Tensor start, Tensor count, bool fast_reorder) "
    "-> ()",
    fake=lambda pool, block_table, path, start, count, fast_reorder: None,
    levels=_BUFFER,
    indices=_THROUGH,
    meta={"identity_when_zero": "count", "reads_written": True},
)
def commit_pages_(
    pool: torch.Tensor,
    block_table: torch.Tensor,
    path: torch.Tensor,
    start: torch.Tensor,
    count: torch.Tensor,
    fast_reorder: bool,
) -> None:
    """`commit_path_` through a table: row start[b] + path[b, j] of sequence b moves to start[b] + j for j < count[b].

    Rows are gathered before any is written; `fast_reorder` leaves the leading rows that are in place already.
    """
    page = pool.shape[1]
    for row in range(path.shape[0]):
        nodes = path[row, : int(count[row])].tolist()
        first = int(start[row])
        table = block_table[row].tolist()
        moved = [pool[table[(first + node) // page], (first + node) % page].clone() for node in nodes]
        skip = 0
        while fast_reorder and skip < len(nodes) and nodes[skip] == skip:
            skip += 1
        for place in range(skip, len(nodes)):
            at = first + place
            pool[table[at // page], at % page] = moved[place]


@op(
    "commit_pages_layers_(Tensor(a!)[] pools, Tensor block_table, Tensor path, Tensor start, Tensor count, "
    "bool fast_reorder) -> ()",
    fake=lambda pools, block_table, path, start, count, fast_reorder: None,
    levels=_BUFFER,
    meta={"reads_written": True},
)
def commit_pages_layers_(
    pools: Sequence[torch.Tensor],
    block_table: torch.Tensor,
    path: torch.Tensor,
    start: torch.Tensor,
    count: torch.Tensor,
    fast_reorder: bool,
) -> None:
    """`commit_pages_` for every layer of each of `pools` [L,P,page,…]."""
    for pool in pools:
        for layer in pool.unbind(0):
            commit_pages_(layer, block_table, path, start, count, fast_reorder)


def _attention_fake(q: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)


@op(
    "tree_attention_paged(Tensor q, Tensor k_pool, Tensor v_pool, Tensor block_table, Tensor length, Tensor mask, "
    "Tensor positions, float scale, int window, bool fused=True) -> Tensor",
    fake=_attention_fake,
    rows=("q", "mask", "positions"),
    levels=_BUFFER,
    indices=_KEYS,
    meta={"reads_written": True},
)
def tree_attention_paged(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_table: torch.Tensor,
    length: torch.Tensor,
    mask: torch.Tensor,
    positions: torch.Tensor,
    scale: float,
    window: int,
    fused: bool = True,
) -> torch.Tensor:
    """`tree_attention_cached` of the rows that the table names."""
    keys, values = _rows_of(k_pool, block_table), _rows_of(v_pool, block_table)
    made: torch.Tensor = tree_attention_cached(q, keys, values, length, mask, positions, scale, window, fused)
    return made


@op(
    "causal_attention_paged(Tensor q, Tensor k_pool, Tensor v_pool, Tensor block_table, Tensor length, "
    "Tensor positions, int offset, float scale, int window, bool fused=True) -> Tensor",
    fake=_attention_fake,
    rows=("q", "positions"),
    levels=_BUFFER,
    indices=_KEYS,
    meta={"reads_written": True},
)
def causal_attention_paged(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_table: torch.Tensor,
    length: torch.Tensor,
    positions: torch.Tensor,
    offset: int,
    scale: float,
    window: int,
    fused: bool = True,
) -> torch.Tensor:
    """`causal_attention_cached` of the rows that the table names."""
    keys, values = _rows_of(k_pool, block_table), _rows_of(v_pool, block_table)
    made: torch.Tensor = causal_attention_cached(q, keys, values, length, positions, offset, scale, window, fused)
    return made


@op(
    "rope_attention_paged_(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin, Tensor(a!) k_pool, Tensor(b!) v_pool, "
    "Tensor block_table, Tensor length, Tensor? count, Tensor? mask, float scale, bool fused=True) -> Tensor",
    fake=_attention_fake,
    levels=_BUFFER,
    indices=_KEYS,
    meta={"reads_written": True},
)
def rope_attention_paged_(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_table: torch.Tensor,
    length: torch.Tensor,
    count: torch.Tensor | None,
    mask: torch.Tensor | None,
    scale: float,
    fused: bool = True,
) -> torch.Tensor:
    """`rope_attention_` through a table, where the pages of all new rows are taken."""
    append_pages_(k_pool, block_table, rope(k, cos, sin), length, count)
    append_pages_(v_pool, block_table, v, length, count)
    turned, positions = rope(q, cos, sin), length.unsqueeze(1).expand(-1, q.shape[1])
    pools = (k_pool, v_pool, block_table, length)
    if mask is None:
        return causal_attention_paged(turned, *pools, positions, 0, scale, 0, fused)
    return tree_attention_paged(turned, *pools, mask, positions, scale, 0, fused)


@op(
    "rope_attention_paged_linear_(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin, Tensor(a!) k_pool, "
    "Tensor(b!) v_pool, Tensor block_table, Tensor length, Tensor? count, Tensor? mask, float scale, bool fused, "
    "Tensor weight, Tensor? bias, Tensor? residual) -> Tensor",
    fake=lambda q, *rest: q.new_empty((*q.shape[:2], rest[12].shape[0])),
    levels=_BUFFER,
    indices=_KEYS,
    meta={"reads_written": True},
)
def rope_attention_paged_linear_(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_table: torch.Tensor,
    length: torch.Tensor,
    count: torch.Tensor | None,
    mask: torch.Tensor | None,
    scale: float,
    fused: bool,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> torch.Tensor:
    """`rope_attention_linear_` through a table."""
    o = rope_attention_paged_(q, k, v, cos, sin, k_pool, v_pool, block_table, length, count, mask, scale, fused)
    return fused_linear(o.flatten(-2), weight, bias, None, 0.0, "none", residual)
