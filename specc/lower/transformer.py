"""One llama-like decoder layer and head, on rows [B,M,…] of any tokens; how they attend is the caller's choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.build import GraphBuilder
from specc.models.geometry import Geometry
from specc.program import Weight

aten = torch.ops.aten
Attend = Callable[[Node, Node, Node], Node]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model inside a program: its geometry, the prefix of its weight names ("" target, "draft_"), its dtype."""

    geometry: Geometry
    prefix: str
    dtype: torch.dtype
    weights: Mapping[str, Weight]

    @property
    def layer_weights(self) -> tuple[str, ...]:
        """Names (with prefix) of the weights that exist once per layer, in declaration order."""
        return tuple(
            name
            for name, weight in self.weights.items()
            if weight.layers is not None and weight.name.startswith(self.prefix)
        )

    def name(self, weight: str) -> str:
        """Program name of a logical weight."""
        return self.prefix + weight

    @property
    def head(self) -> str:
        """Program name of the output projection (the embedding, where tied)."""
        return self.name("embed_tokens" if self.geometry.tie_word_embeddings else "lm_head")

    @property
    def scale(self) -> float:
        """Softmax scale of attention."""
        return float(self.geometry.head_dim) ** -0.5


def rope_scaling_list(geometry: Geometry) -> list[float]:
    """The `scaling` argument of `rope_tables`."""
    scaling = geometry.rope_scaling
    if scaling is None:
        return []
    return [
        scaling.factor,
        scaling.low_freq_factor,
        scaling.high_freq_factor,
        float(scaling.original_max_position_embeddings),
    ]


def rope_tables(b: GraphBuilder, model: ModelInfo, positions: Node) -> tuple[Node, Node]:
    """cos and sin nodes [B,M,D/2] at `positions` [B,M]."""
    geometry = model.geometry
    tables = b.call(
        ops.rope_tables,
        positions,
        geometry.head_dim,
        geometry.rope_theta,
        rope_scaling_list(geometry),
        model.dtype,
        name="rope_tables",
    )
    return b.item(tables, 0, "cos"), b.item(tables, 1, "sin")


def norm(b: GraphBuilder, x: Node, weight: Node, eps: float, name: str | None = None) -> Node:
    """RMSNorm over the last dim."""
    return b.call(aten.rms_norm.default, x, [weight.meta["val"].shape[0]], weight, eps, name=name)


def linear(b: GraphBuilder, x: Node, w: Mapping[str, Node], name: str) -> Node:
    """x W^T (+ bias where the layer has one)."""
    bias = w.get(f"{name}_bias")
    arguments = (x, w[name]) if bias is None else (x, w[name], bias)
    return b.call(aten.linear.default, *arguments, name=name.removesuffix("_proj"))


def decoder_layer(
    b: GraphBuilder,
    x: Node,
    w: Mapping[str, Node],
    geometry: Geometry,
    rotary: tuple[Node, Node],
    attend: Attend,
    *,
    attention_input: Node | None = None,
) -> Node:
    """x [B,M,H] -> [B,M,H]; `w` maps logical names to nodes; `attend(q, k, v)` returns [B,M,Hq,D].

    `attention_input` replaces norm(x) as the attention's input (the EAGLE-3 head concatenates two norms).
    """
    eps = geometry.rms_norm_eps
    if attention_input is None:
        attention_input = norm(b, x, w["input_layernorm"], eps, "attention_input")
    q = b.call(aten.unflatten.int, linear(b, attention_input, w, "q_proj"), -1, [-1, geometry.head_dim])
    k = b.call(aten.unflatten.int, linear(b, attention_input, w, "k_proj"), -1, [-1, geometry.head_dim])
    v = b.call(aten.unflatten.int, linear(b, attention_input, w, "v_proj"), -1, [-1, geometry.head_dim])
    if geometry.qk_norm:
        q, k = norm(b, q, w["q_norm"], eps), norm(b, k, w["k_norm"], eps)
    q, k = b.call(ops.rope, q, *rotary, name="q_rope"), b.call(ops.rope, k, *rotary, name="k_rope")
    attended = b.call(aten.flatten.using_ints, attend(q, k, v), -2, -1)
    x = b.call(aten.add.Tensor, x, linear(b, attended, w, "o_proj"))
    hidden = norm(b, x, w["post_attention_layernorm"], eps, "mlp_input")
    gate = b.call(aten.silu.default, linear(b, hidden, w, "gate_proj"))
    gated = b.call(aten.mul.Tensor, gate, linear(b, hidden, w, "up_proj"))
    return b.call(aten.add.Tensor, x, linear(b, gated, w, "down_proj"))


def logical(model: ModelInfo, nodes: Mapping[str, Node], names: Sequence[str]) -> dict[str, Node]:
    """Strip the model's prefix from weight names, for `decoder_layer`."""
    return {name.removeprefix(model.prefix): nodes[name] for name in names}
