"""Loops over layers that map per-layer state without carrying anything."""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import Node

from specc.ir import ops
from specc.ir.build import BodyBuilder
from specc.lower.step import StepBuilder
from specc.lower.transformer import ModelInfo


def layer_map(
    b: StepBuilder,
    model: ModelInfo,
    sliced: dict[str, Node],
    invariant: dict[str, Node],
    make: Callable[[BodyBuilder], Node],
    name: str,
) -> Node:
    """A loop over layers with one stacked result and nothing carried."""
    body = BodyBuilder("layer", carried={}, sliced=sliced, invariant=invariant, keys=b.keys)
    return body.close(b, model.trips, [make(body)], f"{name}_layers")[0]


def append_layers(
    b: StepBuilder, model: ModelInfo, cache: Node, rows: Node, start: Node, count: Node, name: str
) -> Node:
    """cache [L,B,C,…] with rows [L,B,M,…] appended at start [B], `count` [B] of them, in every layer."""
    return layer_map(
        b,
        model,
        {"cache": cache, "rows": rows},
        {"start": start, "count": count},
        lambda n: n.call(ops.append_rows, n["cache"], n["rows"], n["start"], n["count"]),
        name,
    )
