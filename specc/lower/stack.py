"""The layers of a stack by their positions in its period: what each keeps from token to token, and under which names.

A stack of L layers is L / P repetitions of its first P layers; a loop over layers visits the repetitions, and its body
holds the P positions. Everything that exists per layer is declared once per position, under the position's prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from specc.ir.ops.delta_math import rule_dtype
from specc.models.geometry import DeltaGeometry, Geometry, Layer

StateCommit = Literal["snapshots", "replay", "factors"]
"""How accepted tokens reach the recurrent state: `commit.state`."""

CANDIDATES: dict[StateCommit, tuple[str, ...]] = {
    "snapshots": ("state_candidate",),
    "replay": ("k_input", "v_input", "g_input", "beta_input"),
    "factors": ("k_factor", "u_factor", "g_factor"),
}
"""What verify leaves behind for the commit, per node."""


@dataclass(frozen=True, slots=True)
class Position:
    """One layer of the period; `prefix` starts the names of its weights and slots."""

    index: int
    layer: Layer
    prefix: str

    @property
    def recurrent(self) -> bool:
        """A Gated DeltaNet layer, not attention."""
        return self.layer.mixer == "delta"


def positions(geometry: Geometry) -> tuple[Position, ...]:
    """The period's layers in order; a period of one has no prefix."""
    period = geometry.period
    return tuple(
        Position(index, layer, "" if period == 1 else f"l{index}_")
        for index, layer in enumerate(geometry.layers[:period])
    )


def committed_of(delta: DeltaGeometry) -> tuple[str, ...]:
    """What recurrent layers keep from token to token: the state and, where they convolve, the inputs' window."""
    return ("state", "conv_window") if delta.conv_size else ("state",)


def candidates_of(delta: DeltaGeometry, commit: StateCommit) -> tuple[str, ...]:
    """The rows that verify leaves behind for the commit, per node."""
    return ("conv_candidate", *CANDIDATES[commit]) if delta.conv_size else CANDIDATES[commit]


def delta_of(geometry: Geometry) -> DeltaGeometry:
    """The recurrent layers' sizes. Raises ValueError for a stack without them."""
    if geometry.delta is None:
        raise ValueError(f"family {geometry.family} has no recurrent layers")
    return geometry.delta


def row_shapes(delta: DeltaGeometry) -> dict[str, tuple[int, ...]]:
    """Sizes of one node's row of each candidate, and of the committed state and window."""
    heads, values = delta.num_value_heads, delta.value_dim
    key = (delta.num_key_heads, delta.key_dim)
    return {
        "state": (heads, values, delta.key_dim),
        "conv_window": (max(delta.conv_size - 1, 0), delta.conv_channels),
        "conv_candidate": (delta.conv_channels,),
        "state_candidate": (heads, values, delta.key_dim),
        "k_input": key,
        "v_input": (heads, values),
        "g_input": (heads,),
        "beta_input": (heads,),
        "k_factor": key,
        "u_factor": (heads, values),
        "g_factor": (heads,),
    }


IN_MODEL_DTYPE = frozenset({"conv_window", "conv_candidate", "k_input", "v_input", "k_factor"})
STATES = frozenset({"state", "state_candidate"})


def row_dtype(name: str, dtype: torch.dtype, state: torch.dtype) -> torch.dtype:
    """The type of a candidate or of what is committed: the model's, the state's, or what the rule computes in."""
    if name in IN_MODEL_DTYPE:
        return dtype
    return state if name in STATES else rule_dtype(state)
