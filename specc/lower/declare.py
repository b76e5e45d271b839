"""State slots, weights and value ranges of a program, from a resolved spec."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from specc.ir.dims import BATCH, CHUNK
from specc.ir.port import ValueRange
from specc.lower.stack import StateCommit, candidates_of, committed_of, positions, row_dtype, row_shapes
from specc.models.bigram import NEXT_TOKEN
from specc.models.geometry import Geometry
from specc.models.weights import WeightEntry, weight_table
from specc.program import Role, Slot, Weight

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
    """Program weights for the checkpoint entries of a model of `layers` decoder layers; names with a prefix belong to
    the draft folder. A weight of one position of the period has as many tensors as the period has repetitions."""
    kinds = {"float": dtype, "float32": torch.float32, "int64": INT, "bool": torch.bool}
    return {
        prefix + entry.name: Weight(
            name=prefix + entry.name,
            shape=entry.shape,
            dtype=kinds[entry.kind],
            sources=entry.sources,
            layers=len(entry.layers(layers)) if entry.per_layer else None,
            model="draft" if prefix else "target",
            first_layer=entry.first_layer,
            layer_step=entry.layer_step,
            experts=entry.experts,
        )
        for entry in entries
    }


def cache_slots(geometry: Geometry, capacity: int, dtype: torch.dtype, prefix: str = "") -> dict[str, Slot]:
    """Committed K and V rows [trips,B,C,Hkv,D] of a model's attention layers, by position of its period."""
    whose = "the drafter" if prefix else "the target"
    row = (capacity, geometry.num_key_value_heads, geometry.head_dim)
    declared = [
        _layered(f"{prefix}{position.prefix}{name}_cache", geometry, row, dtype, "committed", f"{what} of {whose}")
        for position in positions(geometry)
        if not position.recurrent
        for name, what in (("k", "K rows"), ("v", "V rows"))
    ]
    return {slot.name: slot for slot in declared}


def candidate_slots(geometry: Geometry, nodes: int, dtype: torch.dtype) -> dict[str, Slot]:
    """K and V rows [trips,B,N,Hkv,D] of the nodes verified last."""
    row = (nodes, geometry.num_key_value_heads, geometry.head_dim)
    declared = [
        _layered(f"{position.prefix}{name}_candidate", geometry, row, dtype, "candidate", f"{what} {VERIFIED}")
        for position in positions(geometry)
        if not position.recurrent
        for name, what in (("k", "K rows"), ("v", "V rows"))
    ]
    return {slot.name: slot for slot in declared}


VERIFIED = "of the nodes verified last"
DOCS = {
    "state": "recurrent state of the committed tokens",
    "conv_window": "last inputs of the convolution, oldest first",
    "conv_candidate": f"inputs of the convolution {VERIFIED}",
    "state_candidate": f"recurrent states {VERIFIED}",
    "k_input": f"keys {VERIFIED}",
    "v_input": f"values {VERIFIED}",
    "g_input": f"log decays {VERIFIED}",
    "beta_input": f"betas {VERIFIED}",
    "k_factor": f"keys (before their norm) {VERIFIED}",
    "u_factor": f"corrected values u {VERIFIED}",
    "g_factor": f"log decays {VERIFIED}",
}


def recurrent_slots(
    geometry: Geometry, nodes: int, dtype: torch.dtype, state_dtype: torch.dtype, commit: StateCommit | None
) -> dict[str, Slot]:
    """States and windows [trips,B,…], and per node [trips,B,N,…] what `commit.state` needs, by position."""
    if geometry.delta is None or commit is None:
        return {}
    shapes, kept = row_shapes(geometry.delta), committed_of(geometry.delta)
    declared = []
    for position in positions(geometry):
        for name in (*kept, *candidates_of(geometry.delta, commit)) if position.recurrent else ():
            row = shapes[name] if name in kept else (nodes, *shapes[name])
            role: Role = "committed" if name in kept else "candidate"
            declared.append(
                _layered(position.prefix + name, geometry, row, row_dtype(name, dtype, state_dtype), role, DOCS[name])
            )
    return {slot.name: slot for slot in declared}


def _layered(name: str, geometry: Geometry, row: tuple[int, ...], dtype: torch.dtype, role: Role, doc: str) -> Slot:
    """A slot [trips,B,…] that exists once per layer."""
    trips = geometry.num_hidden_layers // geometry.period
    return Slot(name, (trips, BATCH, *row), dtype, role, f"{doc}, per layer", batch_dim=1)


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
    [0, V - Vd] (I15, checked when a checkpoint is loaded). `next_token` of a bigram drafter holds target ids, likewise
    checked."""
    integers = {name: weight for name, weight in weights.items() if weight.dtype == torch.int64}
    offsets = {
        f"weight:{name}": ValueRange(0, vocabulary - weight.shape[0])
        for name, weight in integers.items()
        if name.endswith("d2t")
    }
    return offsets | {f"weight:{name}": ValueRange(0, vocabulary - 1) for name in integers if name.endswith(NEXT_TOKEN)}


def restrict(ranges: Mapping[str, ValueRange], slots: Mapping[str, Slot]) -> dict[str, ValueRange]:
    """Only the ranges of slots that exist (and all inputs)."""
    return {
        name: value
        for name, value in ranges.items()
        if not name.startswith("slot:") or name.removeprefix("slot:") in slots
    }
