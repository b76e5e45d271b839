"""Weights of reduced models: random by seed; a draft model is a noisy copy of the target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from specc.backends.printing.runtime.prepared import prepared
from specc.check.plain_bigram import random_tables
from specc.lower.drafts.state import head_geometry, head_weight_table
from specc.models.bigram import NEXT_LOG_PROB, NEXT_TOKEN
from specc.models.geometry import Geometry
from specc.models.random_weights import random_weights
from specc.models.weights import weight_table
from specc.program import DecodeProgram, Weight
from specc.spec import Spec

NOISE = 0.12
"""Standard deviation of a draft model's noise, in standard deviations of each tensor."""

PREFIX = "draft_"
Value = Tensor | tuple[Tensor, ...]


FORGETFUL = 20.0
"""a_log = log(FORGETFUL) and dt_bias = FORGETFUL make a head with decays of about e^-400 per token."""

QUIET = 0.01
"""Factor on such a head's columns of o_proj."""


def target_weights(geometry: Geometry, seed: int) -> dict[str, Value]:
    """The target's weights in float64 by logical name.

    Of several value heads the last one of the last recurrent layer forgets at once: differences of path sums between
    its nodes are beyond what exp can hold, so that a mask applied after exp gives NaN. What such a head reads, one
    token's (q . k) u, is normed whatever its size, which magnifies rounding where q . k is near 0: it counts little.
    """
    drawn = random_weights(weight_table(geometry), geometry, seed, torch.float64)
    made = {name: value if isinstance(value, Tensor) else tuple(value) for name, value in drawn.items()}
    for name in [name for name in made if name.endswith("a_log")][-1:]:
        other = name.replace("a_log", "dt_bias")
        made[name] = _last_head(made[name], math.log(FORGETFUL))
        made[other] = _last_head(made[other], FORGETFUL)
        if made[name][-1].numel() > 1 and geometry.delta is not None:
            *rest, last = made[name.replace("a_log", "o_proj")]
            share = torch.ones(last.shape[1], dtype=last.dtype)
            share[-geometry.delta.value_dim :] = QUIET
            made[name.replace("a_log", "o_proj")] = (*rest, last * share)
    return made


def _last_head(value: Value, number: float) -> Value:
    """The last element of the last layer's tensor [HV] replaced, if there are several."""
    assert not isinstance(value, Tensor)
    last = value[-1].clone()
    if last.numel() > 1:
        last[-1] = number
    return (*value[:-1], last)


def _noisy(value: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(value.shape, generator=generator, dtype=value.dtype)
    return value + NOISE * (value.std() if value.numel() > 1 else 1.0) * noise


def noisy_copy(target: Mapping[str, Value], layers: int, seed: int) -> dict[str, Value]:
    """A draft model of the target's widths: its first `layers` layers, every tensor with noise."""
    generator = torch.Generator().manual_seed(seed + 1)
    made: dict[str, Value] = {}
    for name, value in target.items():
        if isinstance(value, Tensor):
            made[PREFIX + name] = _noisy(value, generator)
        else:
            made[PREFIX + name] = tuple(_noisy(one, generator) for one in value)[:layers]
    return made


def head_weights(spec: Spec, seed: int) -> dict[str, Value]:
    """A random EAGLE-3 head, its vocabulary tables included."""
    head = spec.eagle_geometry
    assert head is not None
    table = head_weight_table(head)
    drawn = random_weights(table, head_geometry(head), seed + 2, torch.float64, include_optional=True)
    made: dict[str, Value] = {}
    for name, value in drawn.items():
        one = value if isinstance(value, Tensor) else value[0]
        per_layer = next(entry for entry in table if entry.name == name).per_layer
        made[PREFIX + name] = (one,) if per_layer else one
    return made


def logical_weights(spec: Spec, seed: int) -> dict[str, Value]:
    """Every weight of target and drafter by program name, as the naive program declares them."""
    made = target_weights(spec.target.geometry, seed)
    if spec.draft.method == "draft_model":
        geometry = spec.draft_geometry
        assert geometry is not None
        if spec.target.geometry.recurrent:
            # No transformer is a copy of a recurrent target.
            made |= {PREFIX + name: value for name, value in target_weights(geometry, seed + 1).items()}
        else:
            made |= noisy_copy(made, geometry.num_hidden_layers, seed)
    elif spec.draft.method == "eagle3":
        made |= head_weights(spec, seed)
    elif spec.bigram_geometry is not None:
        tables = random_tables(spec.bigram_geometry, seed + 3)
        made |= {PREFIX + name: table for name, table in zip((NEXT_TOKEN, NEXT_LOG_PROB), tables, strict=True)}
    return made


class Layout(Protocol):
    """What the weights of a program and the table WEIGHTS of a generated module say of one weight."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Checkpoint names, concatenated along dim 0."""

    @property
    def layers(self) -> int | None:
        """Tensors, one per layer; None: one for all."""

    @property
    def model(self) -> str:
        """ "target" or "draft"."""

    @property
    def first_layer(self) -> int:
        """The decoder layer of the first tensor: its position in the period."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the tensors."""

    @property
    def form(self) -> str:
        """What the loader makes of them; "": nothing."""


def program_weights(
    wanted: Mapping[str, Layout], naive: DecodeProgram, logical: Mapping[str, Value]
) -> dict[str, Value]:
    """The weights `wanted`: those of the naive program, concatenated along dim 0 where a pass fused them.

    What the loader prepares is prepared, in the type that it has then; all others have the type that they came in.
    """
    by_source: dict[tuple[str, int, str], Weight] = {
        (weight.model, weight.first_layer, weight.sources[0]): weight for weight in naive.weights.values()
    }
    made: dict[str, Value] = {}
    for name, weight in wanted.items():
        parts: list[Value] = []
        rest = weight.sources
        while rest:
            part = by_source[weight.model, weight.first_layer, rest[0]]
            parts.append(logical[part.name])
            rest = rest[len(part.sources) :]
        if weight.layers is None:
            made[name] = torch.cat([part for part in parts if isinstance(part, Tensor)])
        else:
            made[name] = tuple(torch.cat([part[layer] for part in parts]) for layer in range(weight.layers))
        if weight.form:
            made[name] = _prepared(weight, made[name])
    return made


def _prepared(weight: Layout, value: Value) -> Value:
    if isinstance(value, Tensor):
        return prepared(weight.form, value.to(weight.dtype))
    return tuple(prepared(weight.form, one.to(weight.dtype)) for one in value)
