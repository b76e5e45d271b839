"""Everything the lowering functions share: the spec's numbers, the declarations, the models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from specc.lower.stack import StateCommit, positions
from specc.lower.transformer import ModelInfo
from specc.program import Slot, Weight


@dataclass(frozen=True, slots=True)
class LowerContext:
    """Numbers and declarations of one lowering.

    `nodes` counts the root (N); `max_path` is num_steps + 1, the rows of the longest accepted path with the
    root; `capacity` is max_sequence_length + N cache rows. `aux_layers` are 0-based layer numbers of which
    `aux_of` ("input", "output", of recurrent layers "readout") is recorded as features; empty when the drafter needs
    none. `state_commit` is None for targets without recurrent layers.
    """

    slots: Mapping[str, Slot]
    weights: Mapping[str, Weight]
    target: ModelInfo
    drafter: ModelInfo | None
    nodes: int
    max_path: int
    chain: bool
    capacity: int
    max_sequence_length: int
    dtype: torch.dtype
    aux_layers: tuple[int, ...] = ()
    aux_of: str = "output"
    fused_attention: bool = True
    state_dtype: torch.dtype = torch.float32
    state_commit: StateCommit | None = None

    @property
    def attends(self) -> bool:
        """Whether some layer of the target has a KV cache."""
        return any(not position.recurrent for position in positions(self.target.geometry))
