"""State slots, weights and value ranges of a program, from a resolved spec."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from specc.ir.dims import BATCH, CHUNK
from specc.ir.port import ValueRange
from specc.models.geometry import Geometry
from specc.models.weights import WeightEntry, weight_table
from specc.program import Slot, Weight

INT = torch.int64


def target_weights(geometry: Geometry, dtype: torch.dtype) -> dict[str, Weight]:
    """The target's weights under their logical names."""
    return declare_weights(weight_table(geometry), geometry.num_hidden_layers, dtype)


def draft_model_weights(geometry: Geometry, dtype: torch.dtype) -> dict[str, Weight]:
    """A draft model's weights, prefixed `draft_`."""
    return declare_weights(weight_table(geometry), geometry.num_hidden_layers, dtype, prefix="draft_")


def declare_weights(
    entries: tuple[WeightEntry, ...], layers: int, dtype: torch.dtype, prefix: str = ""
) -> dict[str, Weight]:
    """Program weights for checkpoint entries; names with a prefix belong to the draft folder."""
    kinds = {"float": dtype, "int64": INT, "bool": torch.bool}
    return {
        prefix + entry.name: Weight(
            name=prefix + entry.name,
            shape=entry.shape,
            dtype=kinds[entry.kind],
            sources=(entry.checkpoint_name,),
            layers=layers if entry.per_layer else None,
            model="draft" if prefix else "target",
        )
        for entry in entries
    }


def cache_slots(geometry: Geometry, capacity: int, dtype: torch.dtype, prefix: str = "") -> dict[str, Slot]:
    """Committed K and V rows [L,B,C,Hkv,D] of a model."""
    shape = (geometry.num_hidden_layers, BATCH, capacity, geometry.num_key_value_heads, geometry.head_dim)
    whose = "the drafter" if prefix else "the target"
    return {
        f"{prefix}{name}_cache": Slot(
            f"{prefix}{name}_cache",
            shape,
            dtype,
            "committed",
            f"{name.upper()} rows of {whose}, per layer",
            batch_dim=1,
        )
        for name in ("k", "v")
    }


def candidate_slots(geometry: Geometry, nodes: int, dtype: torch.dtype) -> dict[str, Slot]:
    """K and V rows [L,B,N,Hkv,D] of the nodes verified last."""
    shape = (geometry.num_hidden_layers, BATCH, nodes, geometry.num_key_value_heads, geometry.head_dim)
    return {
        f"{name}_candidate": Slot(
            f"{name}_candidate",
            shape,
            dtype,
            "candidate",
            f"{name.upper()} rows of the nodes verified last",
            batch_dim=1,
        )
        for name in ("k", "v")
    }


def control_slots() -> dict[str, Slot]:
    """The slots that every program has. A fresh row is finished: prefill brings it to life."""
    declared = (
        Slot("length", (BATCH,), INT, "committed", "committed tokens"),
        Slot(
            "root_token", (BATCH,), INT, "committed", "last emitted token, not yet committed: node 0 of the next tree"
        ),
        Slot("finished", (BATCH,), torch.bool, "control", "rows that take no further step", fill=True),
        Slot("remaining", (BATCH,), INT, "control", "tokens that may still be emitted", fill=1 << 40),
        Slot("rng", (BATCH,), INT, "rng", "key of the row's random stream"),
    )
    return {slot.name: slot for slot in declared}


def value_ranges(vocabulary: int, nodes: int, max_sequence_length: int, max_path: int) -> dict[str, ValueRange]:
    """What integer slots and inputs may hold; checked at the module's edge, assumed by range analysis."""
    token = ValueRange(0, vocabulary - 1)
    return {
        "slot:length": ValueRange(0, max_sequence_length),
        "slot:root_token": token,
        "slot:remaining": ValueRange(0, 1 << 40),
        "slot:history": token,
        "slot:recent_tokens": token,
        "slot:recent_count": ValueRange(0, max_path),
        "input:tokens": token,
        "input:input_ids": token,
        "input:parent": ValueRange(-1, max(nodes - 2, -1), "committed"),
        "input:lengths": ValueRange(0, CHUNK),
        "input:path": ValueRange(0, nodes - 1),
        "input:emitted_tokens": token,
        "input:emitted": ValueRange(0, max_path),
        "input:bonus": token,
    }


def weight_ranges(vocabulary: int, weights: Mapping[str, Weight]) -> dict[str, ValueRange]:
    """Ranges of integer weights. `d2t` holds target id - draft id of ascending target ids, so every entry lies in
    [0, V - Vd] (I15, checked when a checkpoint is loaded)."""
    return {
        f"weight:{name}": ValueRange(0, vocabulary - weight.shape[0])
        for name, weight in weights.items()
        if name.endswith("d2t") and weight.dtype == torch.int64
    }


def restrict(ranges: Mapping[str, ValueRange], slots: Mapping[str, Slot]) -> dict[str, ValueRange]:
    """Only the ranges of slots that exist (and all inputs)."""
    return {
        name: value
        for name, value in ranges.items()
        if not name.startswith("slot:") or name.removeprefix("slot:") in slots
    }
