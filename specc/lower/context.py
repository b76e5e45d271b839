"""Everything the lowering functions share: the spec's numbers, the declarations, the models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from specc.lower.stack import StateCommit, positions
from specc.lower.transformer import ModelInfo
from specc.models.geometry import AuxFeature
from specc.program import Slot, Weight


@dataclass(frozen=True, slots=True)
class LowerContext:
    """Numbers and declarations of one lowering.

    `nodes` counts the root (N); `max_path` is num_steps + 1, the rows of the longest accepted path with the
    root; `capacity` is max_sequence_length + N cache rows. `aux` is what of the target's layers is recorded as
    features, side by side in that order; empty when the drafter needs none. `state_commit` is None for targets
    without recurrent layers.
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
    aux: tuple[AuxFeature, ...] = ()
    fused_attention: bool = True
    state_dtype: torch.dtype = torch.float32
    state_commit: StateCommit | None = None

    @property
    def features_width(self) -> int:
        """Columns of the recorded features."""
        return sum(self.target.geometry.feature_size(feature.of) for feature in self.aux)

    @property
    def attends(self) -> bool:
        """Whether some layer of the target has a KV cache."""
        return any(not position.recurrent for position in positions(self.target.geometry))
