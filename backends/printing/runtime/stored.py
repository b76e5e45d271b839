"""States whose tensors stay where they are: views of single layers, and writing back what a step has changed."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specc.backends.printing.runtime.abi import SLOTS, State, Views, flush
from specc.backends.printing.runtime.edge import check_state, row_index


def views(state: State) -> Views:
    """The same memory by layer."""
    parts: list[Tensor | tuple[Tensor, ...]] = []
    for value, slot in zip(state, SLOTS.values(), strict=True):
        by_layer = slot.batch_dim == 1
        parts.append(
            tuple(value[layer] for layer in range(len(value))) if by_layer else value
        )
    return Views._make(parts)


def store(old: Views, new: Views) -> None:
    """Write what a step has changed into the memory of its state.

    No changed value shares memory with another slot: step functions copy such values.
    """
    for before, after in zip(old, new, strict=True):
        # Tensors only are compared by identity: torch.compile can't compare two tuples so.
        if isinstance(before, Tensor) and isinstance(after, Tensor):
            if after is not before:
                before.copy_(after)
        else:
            for rows, changed in zip(before, after, strict=True):
                if changed is not rows:
                    rows.copy_(changed)


def restore(state: State, rows: Sequence[int], saved: State) -> State:
    """The state with row rows[i] replaced by row i of a snapshot, in place."""
    check_state(state)
    if check_state(saved) != len(rows):
        raise ValueError(f"the snapshot does not have {len(rows)} rows")
    index = row_index(rows, state)
    state = flush(state)
    for value, slot, part in zip(state, SLOTS.values(), saved, strict=True):
        value.index_copy_(slot.batch_dim, index, part)
    return state


def reset(state: State, rows: Sequence[int]) -> State:
    """The state with these rows as `init_state` makes them, in place: nothing committed."""
    check_state(state)
    index = row_index(rows, state)
    state = flush(state)
    for value, slot in zip(state, SLOTS.values(), strict=True):
        value.index_fill_(slot.batch_dim, index, slot.fill)
    return state
