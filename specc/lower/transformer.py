"""Attention layers and MLPs on rows [B,M,…] of any tokens; how the rows attend is the caller's choice."""

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
    def trips(self) -> int:
        """Iterations of a loop over layers: one per repetition of the stack's period."""
        return self.geometry.num_hidden_layers // self.geometry.period

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
        geometry.rotary_dim or geometry.head_dim,
        geometry.rope_theta,
        rope_scaling_list(geometry),
        model.dtype,
        name="rope_tables",
    )
    return b.item(tables, 0, "cos"), b.item(tables, 1, "sin")


def norm(b: GraphBuilder, x: Node, weight: Node, eps: float, name: str | None = None, offset: float = 0.0) -> Node:
    """RMSNorm over the last dim; `offset` is added to the weight."""
    if offset:
        weight = b.call(aten.add.Tensor, weight, offset)
    return b.call(aten.rms_norm.default, x, [weight.meta["val"].shape[0]], weight, eps, name=name)


def linear(b: GraphBuilder, x: Node, w: Mapping[str, Node], name: str) -> Node:
    """x W^T (+ bias where the layer has one)."""
    bias = w.get(f"{name}_bias")
    arguments = (x, w[name]) if bias is None else (x, w[name], bias)
    return b.call(aten.linear.default, *arguments, name=name.removesuffix("_proj"))


def rotate(b: GraphBuilder, x: Node, rotary: tuple[Node, Node], geometry: Geometry, name: str) -> Node:
    """Rope on the leading `rotary_dim` dims of each head of x [B,M,H,D] (0: all)."""
    if geometry.rotary_dim in (0, geometry.head_dim):
        return b.call(ops.rope, x, *rotary, name=name)
    turned = b.call(ops.rope, b.call(aten.narrow.default, x, -1, 0, geometry.rotary_dim), *rotary)
    rest = b.call(aten.narrow.default, x, -1, geometry.rotary_dim, geometry.head_dim - geometry.rotary_dim)
    return b.call(aten.cat.default, [turned, rest], -1, name=name)


def attention_layer(
    b: GraphBuilder,
    hidden: Node,
    w: Mapping[str, Node],
    geometry: Geometry,
    rotary: tuple[Node, Node],
    attend: Attend,
) -> Node:
    """The normed input [B,M,H] -> what attention adds to the residual stream; `attend(q, k, v)` returns [B,M,Hq,D].

    A gated layer's q_proj makes, per head, the query and then a gate (Qwen3-Next).
    """
    eps, offset, dim = geometry.rms_norm_eps, geometry.norm_offset, geometry.head_dim
    q = b.call(
        aten.unflatten.int, linear(b, hidden, w, "q_proj"), -1, [geometry.num_attention_heads, -1], name="q_heads"
    )
    gate = None
    if geometry.gated_attention:
        gate = b.call(aten.narrow.default, q, -1, dim, dim, name="attention_gate")
        q = b.call(aten.narrow.default, q, -1, 0, dim)
    k = b.call(aten.unflatten.int, linear(b, hidden, w, "k_proj"), -1, [-1, dim], name="k_heads")
    v = b.call(aten.unflatten.int, linear(b, hidden, w, "v_proj"), -1, [-1, dim], name="v_heads")
    if geometry.qk_norm:
        q, k = norm(b, q, w["q_norm"], eps, offset=offset), norm(b, k, w["k_norm"], eps, offset=offset)
    q, k = rotate(b, q, rotary, geometry, "q_rope"), rotate(b, k, rotary, geometry, "k_rope")
    attended = attend(q, k, v)
    if gate is not None:
        attended = b.call(aten.mul.Tensor, attended, b.call(aten.sigmoid.default, gate), name="gated")
    return linear(b, b.call(aten.flatten.using_ints, attended, -2, -1), w, "o_proj")


def mlp(b: GraphBuilder, hidden: Node, w: Mapping[str, Node], prefix: str = "") -> Node:
    """down(silu(gate x) * up x); `prefix` names the projections of a shared expert."""
    gate = b.call(aten.silu.default, linear(b, hidden, w, f"{prefix}gate_proj"))
    gated = b.call(aten.mul.Tensor, gate, linear(b, hidden, w, f"{prefix}up_proj"))
    return linear(b, gated, w, f"{prefix}down_proj")


def experts(b: GraphBuilder, hidden: Node, w: Mapping[str, Node], geometry: Geometry) -> Node:
    """The routed experts plus the shared one times its gate (Qwen3-Next). Raises ValueError without experts."""
    if geometry.moe is None:
        raise ValueError("the geometry has no experts")
    weights = (w["router"], w["experts_gate_up"], w["experts_down"])
    chosen = (geometry.moe.num_experts_per_tok, geometry.moe.norm_topk_prob)
    routed = b.call(ops.moe, hidden, *weights, *chosen, name="routed")
    gate = b.call(aten.sigmoid.default, linear(b, hidden, w, "shared_expert_gate"))
    shared = b.call(aten.mul.Tensor, gate, mlp(b, hidden, w, "shared_"), name="shared")
    return b.call(aten.add.Tensor, routed, shared)


def residual_layer(
    b: GraphBuilder, x: Node, w: Mapping[str, Node], geometry: Geometry, mix: Callable[[Node], Node], moe: bool = False
) -> Node:
    """x [B,M,H] -> [B,M,H]: the token mixer `mix`, then the MLP, each on the normed stream and added to it."""
    eps, offset = geometry.rms_norm_eps, geometry.norm_offset
    x = b.call(aten.add.Tensor, x, mix(norm(b, x, w["input_layernorm"], eps, "mixer_input", offset)))
    hidden = norm(b, x, w["post_attention_layernorm"], eps, "mlp_input", offset)
    return b.call(aten.add.Tensor, x, experts(b, hidden, w, geometry) if moe else mlp(b, hidden, w))


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
    """An attention layer and a dense MLP; `w` maps logical names to nodes.

    `attention_input` replaces norm(x) as the attention's input (the EAGLE-3 head concatenates two norms).
    """
    if attention_input is None:
        return residual_layer(b, x, w, geometry, lambda n: attention_layer(b, n, w, geometry, rotary, attend))
    x = b.call(aten.add.Tensor, x, attention_layer(b, attention_input, w, geometry, rotary, attend))
    return b.call(
        aten.add.Tensor,
        x,
        mlp(b, norm(b, x, w["post_attention_layernorm"], geometry.rms_norm_eps, "mlp_input"), w),
    )


def logical(model: ModelInfo, nodes: Mapping[str, Node], names: Sequence[str], position: str = "") -> dict[str, Node]:
    """Weights without the model's prefix (and that of a position of the period), for the layers."""
    prefix = model.prefix + position
    return {name.removeprefix(prefix): nodes[name] for name in names if name.startswith(prefix)}
