"""Saving, restoring and clearing single rows of a batch; all of them flush first."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specc.backends.printing.runtime.abi import SLOTS, State, flush
from specc.backends.printing.runtime.edge import check_state, row_index

# Slots of this many dimensions are caches: they own their memory and change in place.
CACHE_DIMENSIONS = 4


def put_rows(value: Tensor, dim: int, index: Tensor, part: Tensor) -> Tensor:
    """`value` with `part` at `index` along `dim`; caches change in place."""
    if value.dim() >= CACHE_DIMENSIONS:
        return value.index_copy_(dim, index, part)
    return value.index_copy(dim, index, part)


def snapshot(state: State, rows: Sequence[int]) -> tuple[State, State]:
    """The state to go on with, and a copy of these rows as a State of their own."""
    check_state(state)
    index = row_index(rows, state)
    state = flush(state)
    dims = [slot.batch_dim for slot in SLOTS.values()]
    parts = [
        value.index_select(dim, index) for value, dim in zip(state, dims, strict=True)
    ]
    return state, State(*parts)


def restore(state: State, rows: Sequence[int], saved: State) -> State:
    """The state with row rows[i] replaced by row i of a snapshot."""
    check_state(state)
    if check_state(saved) != len(rows):
        raise ValueError(f"the snapshot does not have {len(rows)} rows")
    index = row_index(rows, state)
    state = flush(state)
    dims = [slot.batch_dim for slot in SLOTS.values()]
    parts = [
        put_rows(value, dim, index, part)
        for value, dim, part in zip(state, dims, saved, strict=True)
    ]
    return State(*parts)


def reset(state: State, rows: Sequence[int]) -> State:
    """The state with these rows as `init_state` makes them: finished, nothing committed."""
    check_state(state)
    index = row_index(rows, state)
    state = flush(state)
    parts: list[Tensor] = []
    for value, slot in zip(state, SLOTS.values(), strict=True):
        if value.dim() >= CACHE_DIMENSIONS:
            parts.append(value.index_fill_(slot.batch_dim, index, slot.fill))
        else:
            parts.append(value.index_fill(slot.batch_dim, index, slot.fill))
    return State(*parts)


def clear(state: State) -> None:
    """Every row as `init_state` makes it: finished, nothing committed."""
    for value, slot in zip(state, SLOTS.values(), strict=True):
        value.fill_(slot.fill)
