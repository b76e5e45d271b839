"""What can be observed of a state: committed rows and control slots, after a flush, with unreachable rows blanked."""

from __future__ import annotations

import torch
from torch import Tensor

from specc.check import slots
from specc.check.machines import Machine, State, copied
from specc.check.pages import contiguous

CONTROL = ("length", "root_token", "finished", "remaining", "rng")


def blanked(rows: Tensor, count: Tensor, dim: int = 1) -> Tensor:
    """`rows` [.., B at dim - 1, C at dim, ..] with everything at or beyond count [B] set to 0."""
    shape = [1] * rows.dim()
    shape[dim] = rows.shape[dim]
    column = torch.arange(rows.shape[dim]).reshape(shape)
    limits = [1] * rows.dim()
    limits[dim - 1] = count.shape[0]
    return torch.where(column < count.reshape(limits), rows, torch.zeros_like(rows))


def view(machine: Machine, state: State, eagle: bool) -> State:
    """The observable part of a state (a copy). `eagle`: the drafter is a head, whose rows lag by one.

    Recurrent states and convolution windows: all. Target caches: rows below length. Drafter caches: rows below
    length + 1 - recent_count (a head: length - recent_count), which drafting does not recompute, and none of a row that
    has no text. History: the text and the root. Recent tokens and features: those that count.
    """
    flushed = contiguous(machine.step("flush", copied(state), {})[0])
    length = flushed["length"]
    seen = {name: flushed[name].clone() for name in CONTROL}
    for name in slots.named(flushed, slots.CACHES):
        seen[name] = blanked(flushed[name], length, 2)
    for name in slots.named(flushed, slots.RECURRENT):
        seen[name] = flushed[name].clone()
    if "history" in flushed:
        seen["history"] = blanked(flushed["history"], torch.where(length > 0, length + 1, 0))
    if "recent_count" in flushed:
        count = flushed["recent_count"]
        seen["recent_count"] = count.clone()
        # Without a text there is nothing to see: what idle rows hold is not defined.
        rows = torch.where(length > 0, length + (0 if eagle else 1) - count, 0).clamp(min=0)
        rows = torch.where(length > 0, rows, 0)
        for name in ("draft_k_cache", "draft_v_cache"):
            seen[name] = blanked(flushed[name], rows, 2)
        for name in ("recent_tokens", "recent_features"):
            if name in flushed:
                seen[name] = blanked(flushed[name], count)
    return seen


def alike(one: State, other: State) -> tuple[State, State]:
    """Both views with the cache rows that both have: programs differ in how many spare rows they keep."""
    caches = [name for name in one if name in other and name.endswith(slots.CACHES)]
    rows = {name: min(one[name].shape[2], other[name].shape[2]) for name in caches}
    cut = [
        {name: value[:, :, : rows[name]] if name in rows else value for name, value in state.items()}
        for state in (one, other)
    ]
    return cut[0], cut[1]


def rows_of(state: State, machine: Machine, rows: list[int]) -> State:
    """Only these rows of the batch."""
    index = torch.tensor(rows)
    return {
        name: value.index_select(batch_dim(machine, name), index)
        for name, value in state.items()
        if name in machine.slots
    }


def batch_dim(machine: Machine, name: str) -> int:
    """The dim of the batch in what `view` shows of a slot: in caches that pools became, behind the layers."""
    dim = machine.slots[name].batch_dim
    return dim if dim >= 0 else 1
