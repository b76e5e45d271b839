"""Checks at the public edge of a generated module; inside, everything is trusted."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specc.backends.printing.runtime.abi import MAX_BATCH_SIZE, SLOTS, State


def check_tensor(
    name: str,
    value: Tensor,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Raise TypeError or ValueError unless `value` has this shape (-1: any size)."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, not {type(value).__name__}")
    fits = len(shape) == value.dim() and all(
        wanted in (-1, size) for wanted, size in zip(shape, value.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{name} has shape {tuple(value.shape)}, expected {shape}")
    if value.dtype != dtype:
        raise TypeError(f"{name} has dtype {value.dtype}, expected {dtype}")
    if value.device != device:
        raise ValueError(f"{name} is on {value.device}, the state is on {device}")


def check_range(name: str, value: Tensor, low: int, high: int) -> None:
    """Raise ValueError unless low <= value <= high everywhere."""
    if value.numel() == 0:
        return
    least, most = int(value.min()), int(value.max())
    if least < low or most > high:
        wrong = least if least < low else most
        raise ValueError(f"{name} holds {wrong}, allowed are {low} to {high}")


def check_tree(parent: Tensor, valid: Tensor) -> None:
    """Raise ValueError unless node 0 is the root and every valid node follows its parent."""
    if bool((parent[:, 0] != -1).any()):
        raise ValueError("parent[:, 0] must be -1: node 0 is the root")
    number = torch.arange(parent.shape[1], device=parent.device)
    drafted = valid[:, 1:]
    late = (parent >= number)[:, 1:] & drafted
    if bool(late.any()) or bool(((parent[:, 1:] < 0) & drafted).any()):
        raise ValueError("parent[b, i] of a valid node i > 0 must lie in 0 to i - 1")
    above = torch.gather(valid, 1, parent.clamp(min=0))[:, 1:]
    if not bool(valid[:, 0].all()) or bool((drafted & ~above).any()):
        raise ValueError("the root and every parent of a valid node must be valid")


def check_state(state: State) -> int:
    """The batch size of a state whose fields fit together. Raises TypeError or ValueError."""
    if not isinstance(state, State):
        raise TypeError(f"state must be a State, not {type(state).__name__}")
    batch, device = state.length.shape[0], state.length.device
    for (name, slot), value in zip(SLOTS.items(), state, strict=True):
        # A pool that all rows share may be that of a larger batch, or of a snapshot.
        shape = tuple(batch if size == -1 else max(size, -1) for size in slot.shape)
        check_tensor(f"state.{name}", value, shape, slot.dtype, device)
    return batch


def check_batch(batch: int) -> None:
    """Raise ValueError unless 1 <= batch <= the spec's runtime.max_batch_size."""
    if not 1 <= batch <= MAX_BATCH_SIZE:
        raise ValueError(
            f"batch is {batch}, runtime.max_batch_size allows 1 to {MAX_BATCH_SIZE}"
        )


def row_index(rows: Sequence[int], state: State) -> Tensor:
    """Row numbers as a tensor. Raises ValueError for one that the batch does not have."""
    batch = state.length.shape[0]
    wrong = [row for row in rows if not 0 <= row < batch]
    if wrong or len(set(rows)) != len(rows):
        raise ValueError(
            f"rows {list(rows)} are not distinct rows of a batch of {batch}"
        )
    return torch.tensor(list(rows), dtype=torch.int64, device=state.length.device)
