"""Graphs of a recurrent layer between its projections, as lowering and the passes leave them; changes to refuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.build import GraphBuilder, fake

aten = torch.ops.aten
BATCH, HIDDEN, TAPS, ROOM = 2, 8, 4, 3


@dataclass(frozen=True, slots=True)
class Layer:
    """Sizes of a layer; `grouped` as Qwen3-Next lays out its projection; nodes > 1: a tree with factors pending."""

    heads: int = 2
    share: int = 1
    keys: int = 4
    values: int = 6
    nodes: int = 1
    grouped: bool = False
    dtype: torch.dtype = torch.float32
    change: str = ""

    @property
    def value_heads(self) -> int:
        return self.heads * self.share

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Channels of q, k and v."""
        return self.heads * self.keys, self.heads * self.keys, self.value_heads * self.values

    @property
    def columns(self) -> int:
        """Of the projection."""
        return sum(self.sizes) + self.sizes[2] + 2 * self.value_heads

    def inputs(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shapes and dtypes by name; those that are written first."""
        count, value_heads = sum(self.sizes), self.value_heads
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "state": ((BATCH, value_heads, self.values, self.keys), torch.float32),
            "window": ((BATCH, TAPS - 1, count), self.dtype),
            "kept": ((BATCH, self.nodes, count), self.dtype),
            "k_factor": ((BATCH, self.nodes, self.heads, self.keys), self.dtype),
            "u_factor": ((BATCH, self.nodes, value_heads, self.values), torch.float32),
            "g_factor": ((BATCH, self.nodes, value_heads), torch.float32),
            "x": ((BATCH, self.nodes, HIDDEN), self.dtype),
            "proj": ((self.columns, HIDDEN), self.dtype),
            "conv": ((count, 1, TAPS), self.dtype),
            "a_log": ((value_heads,), self.dtype),
            "dt_bias": ((value_heads,), self.dtype),
            "o_norm": ((self.values,), self.dtype),
            "live": ((BATCH, 1), torch.bool),
            "parent_row": ((BATCH, self.nodes), torch.int64),
            "mask": ((BATCH, self.nodes, self.nodes), torch.bool),
            "path": ((BATCH, ROOM), torch.int64),
            "count": ((BATCH,), torch.int64),
        }
        return shapes

    def tensors(self, seed: int) -> dict[str, torch.Tensor]:
        """Random values for `inputs`."""
        random = torch.Generator().manual_seed(seed)
        made = {
            name: torch.randn(shape, generator=random).to(dtype)
            for name, (shape, dtype) in self.inputs().items()
            if dtype.is_floating_point
        }
        made["g_factor"] = -made["g_factor"].abs()
        parents = [
            [int(torch.randint(0, i + 1, (), generator=random)) for i in range(self.nodes)] for _ in range(BATCH)
        ]
        made["live"] = torch.rand((BATCH, 1), generator=random) < 0.6
        made["parent_row"] = torch.tensor(parents)
        made["mask"] = ops.ancestor_mask(made["parent_row"], torch.ones(BATCH, self.nodes, dtype=torch.bool))
        made["path"] = torch.arange(ROOM).expand(BATCH, -1).clamp(max=self.nodes - 1).contiguous()
        made["count"] = torch.randint(0, min(ROOM, self.nodes) + 1, (BATCH,), generator=random)
        return {name: made[name] for name in self.inputs()}


def _parts(b: GraphBuilder, layer: Layer, made: Node) -> tuple[Node, Node, Node, Node]:
    """mixed, gate [B,N,HV,V], a and b [B,N,HV] of a projection."""
    q, k, v = layer.sizes
    if not layer.grouped:
        pieces = b.call(aten.split_with_sizes.default, made, [q, k, v, layer.value_heads, layer.value_heads, v], -1)
        a, rate, gate = (b.item(pieces, number) for number in (3, 4, 5))
        mixed = b.call(aten.narrow.default, made, -1, 0, q + k + v)
        return mixed, b.call(aten.unflatten.int, gate, -1, [-1, layer.values]), a, rate
    wide = layer.share * layer.values
    every = b.call(aten.narrow.default, made, -1, 0, q + k + 2 * v)
    every = b.call(aten.unflatten.int, every, -1, [layer.heads, -1])
    rates = b.call(aten.narrow.default, made, -1, q + k + 2 * v, 2 * layer.value_heads)
    rates = b.call(aten.unflatten.int, rates, -1, [layer.heads, -1])

    def part(source: Node, start: int, size: int) -> Node:
        return b.call(aten.flatten.using_ints, b.call(aten.narrow.default, source, -1, start, size), -2, -1)

    keys = layer.keys
    rows = [part(every, 0, keys), part(every, keys, keys), part(every, 2 * keys, wide)]
    gate = b.call(aten.unflatten.int, part(every, 2 * keys + wide, wide), -1, [-1, layer.values])
    mixed = b.call(aten.cat.default, rows, -1)
    return mixed, gate, part(rates, layer.share, layer.share), part(rates, 0, layer.share)


def _gates(b: GraphBuilder, layer: Layer, a: Node, rate: Node, given: dict[str, Node]) -> tuple[Node, Node]:
    def wide(node: Node) -> Node:
        same = node.meta["val"].dtype == torch.float32
        return node if same else b.call(aten._to_copy.default, node, dtype=torch.float32)

    soft = b.call(aten.softplus.default, b.call(aten.add.Tensor, wide(a), wide(given["dt_bias"])))
    if layer.change == "no softplus":
        soft = b.call(aten.relu.default, wide(a))
    speed = b.call(aten.neg.default, b.call(aten.exp.default, wide(given["a_log"])))
    return b.call(aten.mul.Tensor, soft, speed), b.call(aten.sigmoid.default, wide(rate))


def graph(layer: Layer) -> GraphModule:
    """The layer's ops one by one, and `change`, if it is one of those that must be refused."""
    b = GraphBuilder(("verify",))
    given = {name: b.placeholder(name, fake(shape, dtype)) for name, (shape, dtype) in layer.inputs().items()}
    made = b.call(ops.fused_linear, given["x"], given["proj"], None, None, 0.0, "none", None)
    mixed, gate, a, rate = _parts(b, layer, made)
    g, beta = _gates(b, layer, a, rate, given)
    seen: list[Node] = []
    if layer.nodes == 1:
        live = given["live"]
        y = b.call(ops.short_conv_, given["window"], mixed, given["conv"], None, live)
        counted = b.call(aten.unsqueeze.default, live, -1)
        zeros = b.call(aten.zeros_like.default, g)
        g = b.call(aten.where.self, counted, g, zeros)
        if layer.change != "beta everywhere":
            beta = b.call(aten.where.self, counted, beta, zeros)
    else:
        b.call(aten.copy_.default, given["kept"], mixed)
        y = b.call(ops.tree_conv, given["window"], mixed, given["conv"], None, given["parent_row"])
    if layer.change == "window read":
        seen.append(b.call(aten.sum.default, given["window"]))
    if layer.change == "convolution read":
        seen.append(b.call(aten.sum.default, y))
    starts = (0, layer.sizes[0], 2 * layer.sizes[0])
    dims = (layer.keys, layer.keys, layer.values)
    heads = [
        b.call(aten.unflatten.int, b.call(aten.narrow.default, y, -1, start, size), -1, [-1, dim])
        for start, size, dim in zip(starts, layer.sizes, dims, strict=True)
    ]
    if layer.nodes == 1:
        rule = b.call(ops.delta_rule_, given["state"], *heads, g, beta)
    else:
        schedule = "serial" if layer.change == "by steps" else "tree"
        factors = [given[name] for name in ("k_factor", "u_factor", "g_factor")]
        rule = b.call(ops.delta_rule_verify_pending_, given["state"], *factors, given["path"], given["count"], 1,
                      "rank_n", *heads, g, beta, given["parent_row"], given["mask"], schedule)  # fmt: skip
        u = b.item(rule, 1)
        if layer.change == "state written":
            b.call(aten.mul_.Scalar, given["state"], 2.0)
        for name, value in (("k_factor", heads[1]), ("u_factor", u), ("g_factor", g)):
            b.call(aten.copy_.default, given[name], value)
    o = b.item(rule, 0)
    seen += _changes(b, layer, given, rule, o)
    norm = b.call(aten.rms_norm.default, o, [layer.values], given["o_norm"], 1e-6)
    return b.output([b.call(aten.mul.Tensor, norm, b.call(aten.silu.default, gate)), *seen])


def _changes(b: GraphBuilder, layer: Layer, given: dict[str, Node], rule: Node, o: Node) -> list[Any]:
    """Nodes behind the rule that read what a fused layer does not give."""
    if layer.change == "outputs read":
        return [b.call(aten.sum.default, o)]
    if layer.change == "factors read":
        return [b.call(aten.sum.default, b.item(rule, 1))]
    if layer.change == "state read":
        return [b.call(aten.sum.default, given["state"])]
    return []
