"""A Gated DeltaNet layer on rows [B,M,…] of any tokens; how the rows recur is the caller's choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.fx import Node

from specc.ir.build import GraphBuilder
from specc.lower.stack import delta_of
from specc.lower.transformer import linear, norm
from specc.models.geometry import DeltaGeometry, Geometry

aten = torch.ops.aten
Recur = Callable[[Node, Node, Node], Node]
"""(convolution input [B,M,C], g [B,M,HV], beta [B,M,HV]) -> o [B,M,HV,V]."""


def delta_layer(
    b: GraphBuilder, hidden: Node, w: Mapping[str, Node], geometry: Geometry, dtype: torch.dtype, recur: Recur
) -> tuple[Node, Node]:
    """The normed input [B,M,H] -> what the layer adds to the residual stream (Yang et al., 2024, figure 1), and its
    readout [B,M,HV V]: the rule's output after head norm and gate, of which the sum is a projection.

    `dtype` is the recurrent state's: decay and beta are computed in it.
    """
    delta = delta_of(geometry)
    mixed, gate, a, rate = _projections(b, hidden, w, delta)
    o = recur(mixed, _log_decay(b, a, w, dtype), _beta(b, rate, delta, dtype))
    normed = norm(b, o, w["o_norm"], delta.norm_eps, "head_norm")
    if gate is not None:
        normed = b.call(aten.mul.Tensor, normed, b.call(aten.silu.default, gate), name="gated")
    readout = b.call(aten.flatten.using_ints, normed, -2, -1, name="readout")
    return linear(b, readout, w, "o_proj"), readout


def _projections(
    b: GraphBuilder, hidden: Node, w: Mapping[str, Node], delta: DeltaGeometry
) -> tuple[Node, Node | None, Node, Node]:
    """mixed [B,M,C] = q, k, v side by side; gate [B,M,HV,V] or None; a and b [B,M,HV]."""
    if delta.grouped:
        return _grouped(b, hidden, w, delta)
    parts = [linear(b, hidden, w, name) for name in ("q_proj", "k_proj", "v_proj")]
    gate = None
    if delta.use_gate:
        gate = b.call(aten.unflatten.int, linear(b, hidden, w, "g_proj"), -1, [-1, delta.value_dim], name="gate")
    mixed = b.call(aten.cat.default, parts, -1, name="mixed")
    return mixed, gate, linear(b, hidden, w, "a_proj"), linear(b, hidden, w, "b_proj")


def _grouped(
    b: GraphBuilder, hidden: Node, w: Mapping[str, Node], delta: DeltaGeometry
) -> tuple[Node, Node, Node, Node]:
    """Qwen3-Next: per key head its q, k, and the v, gate (then b, a) of the value heads that share it."""
    share = delta.num_value_heads // delta.num_key_heads
    wide = share * delta.value_dim
    every = b.call(aten.unflatten.int, linear(b, hidden, w, "in_proj_qkvz"), -1, [delta.num_key_heads, -1])
    rates = b.call(aten.unflatten.int, linear(b, hidden, w, "in_proj_ba"), -1, [delta.num_key_heads, -1])

    def part(source: Node, start: int, size: int, name: str) -> Node:
        piece = b.call(aten.narrow.default, source, -1, start, size)
        return b.call(aten.flatten.using_ints, piece, -2, -1, name=name)

    q = part(every, 0, delta.key_dim, "q")
    k = part(every, delta.key_dim, delta.key_dim, "k")
    v = part(every, 2 * delta.key_dim, wide, "v")
    z = part(every, 2 * delta.key_dim + wide, wide, "z")
    gate = b.call(aten.unflatten.int, z, -1, [-1, delta.value_dim], name="gate")
    rate, a = part(rates, 0, share, "b"), part(rates, share, share, "a")
    return b.call(aten.cat.default, [q, k, v], -1, name="mixed"), gate, a, rate


def _as(b: GraphBuilder, x: Node, dtype: torch.dtype) -> Node:
    return x if x.meta["val"].dtype == dtype else b.call(aten._to_copy.default, x, dtype=dtype)


def _log_decay(b: GraphBuilder, a: Node, w: Mapping[str, Node], dtype: torch.dtype) -> Node:
    """g = -exp(A_log) softplus(a + dt_bias), softplus linear above 20."""
    shifted = b.call(aten.add.Tensor, _as(b, a, dtype), _as(b, w["dt_bias"], dtype))
    speed = b.call(aten.neg.default, b.call(aten.exp.default, _as(b, w["a_log"], dtype)))
    return b.call(aten.mul.Tensor, b.call(aten.softplus.default, shifted), speed, name="g")


def _beta(b: GraphBuilder, rate: Node, delta: DeltaGeometry, dtype: torch.dtype) -> Node:
    """sigmoid(b), twice that where eigenvalues may be negative."""
    beta = b.call(aten.sigmoid.default, _as(b, rate, dtype), name="beta")
    return b.call(aten.mul.Tensor, beta, 2.0, name="beta") if delta.allow_neg_eigval else beta


def heads(b: GraphBuilder, mixed: Node, delta: DeltaGeometry) -> tuple[Node, Node, Node]:
    """The convolution's output [B,M,C] as q, k [B,M,H,K] and v [B,M,HV,V]."""
    key, value = delta.num_key_heads * delta.key_dim, delta.num_value_heads * delta.value_dim

    def part(start: int, size: int, dim: int, name: str) -> Node:
        piece = b.call(aten.narrow.default, mixed, -1, start, size)
        return b.call(aten.unflatten.int, piece, -1, [-1, dim], name=name)

    return (
        part(0, key, delta.key_dim, "q_heads"),
        part(key, key, delta.key_dim, "k_heads"),
        part(2 * key, value, delta.value_dim, "v_heads"),
    )
