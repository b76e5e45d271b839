"""Saving, restoring and clearing single rows of a batch whose caches are pages of pools; all of them flush first.

A row's pages are those that its line of `block_table` names; `page_owner` says of every page
whose it is (row + 1, 0: free). Page 0 is nobody's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from specc.backends.printing.runtime.abi import SLOTS, State, flush
from specc.backends.printing.runtime.edge import check_state, row_index
from specc.backends.printing.runtime.rows import CACHE_DIMENSIONS, put_rows


def pools(state: State) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor [L,P,page,...] of every pool."""
    for name, slot in SLOTS.items():
        if slot.batch_dim < 0 and name != "page_owner":
            yield name, getattr(state, name)


def pages_of(state: State, row: int) -> Tensor:
    """The pages int64 [n] that a row holds, in order."""
    held = state.block_table[row]
    return held[held > 0].long()


def release(state: State, row: int) -> None:
    """Give a row's pages back, in place; what stood in them is wiped."""
    pages = pages_of(state, row)
    for name, pool in pools(state):
        pool.index_fill_(1, pages, SLOTS[name].fill)
    state.page_owner.index_fill_(0, pages, 0)
    state.block_table[row] = 0


def take(state: State, row: int, count: int) -> Tensor:
    """`count` free pages int64 for a row that holds none, in place. Raises RuntimeError."""
    pages = torch.nonzero(state.page_owner[1:] == 0).flatten()[:count] + 1
    if len(pages) < count:
        raise RuntimeError(f"{len(pages)} pages are free, row {row} needs {count}")
    state.page_owner.index_fill_(0, pages, row + 1)
    state.block_table[row, :count] = pages.to(state.block_table.dtype)
    return pages


def snapshot(state: State, rows: Sequence[int]) -> tuple[State, State]:
    """The state to go on with, and a copy of these rows as a State with pools of their own."""
    check_state(state)
    index = row_index(rows, state)
    state = flush(state)
    held = [pages_of(state, row) for row in rows]
    nobodys = index.new_zeros(1)
    kept = torch.cat([nobodys, *held])
    parts = {
        name: value.index_select(slot.batch_dim, index)
        for (name, slot), value in zip(SLOTS.items(), state, strict=True)
        if slot.batch_dim >= 0
    }
    parts |= {name: pool.index_select(1, kept) for name, pool in pools(state)}
    parts["page_owner"] = torch.zeros_like(kept, dtype=state.page_owner.dtype)
    saved = State(**parts)
    saved.block_table.zero_()
    for row, pages in enumerate(held):
        take(saved, row, len(pages))
    return state, saved


def restore(state: State, rows: Sequence[int], saved: State) -> State:
    """The state with row rows[i] replaced by row i of a snapshot."""
    check_state(state)
    if check_state(saved) != len(rows):
        raise ValueError(f"the snapshot does not have {len(rows)} rows")
    index = row_index(rows, state)
    state = flush(state)
    for row in rows:
        release(state, row)
    for place, row in enumerate(rows):
        source = pages_of(saved, place)
        pages = take(state, row, len(source))
        for name, pool in pools(state):
            pool.index_copy_(1, pages, getattr(saved, name).index_select(1, source))
    own = {
        name: put_rows(
            getattr(state, name), slot.batch_dim, index, getattr(saved, name)
        )
        for name, slot in SLOTS.items()
        if slot.batch_dim >= 0 and name != "block_table"
    }
    return state._replace(**own)


def reset(state: State, rows: Sequence[int]) -> State:
    """The state with these rows as `init_state` makes them: finished, no page held."""
    check_state(state)
    index = row_index(rows, state)
    state = flush(state)
    for row in rows:
        release(state, row)
    fresh: dict[str, Tensor] = {}
    for name, slot in SLOTS.items():
        value: Tensor = getattr(state, name)
        if slot.batch_dim >= 0:
            cache = value.dim() >= CACHE_DIMENSIONS
            fill = value.index_fill_ if cache else value.index_fill
            fresh[name] = fill(slot.batch_dim, index, slot.fill)
    return state._replace(**fresh)
