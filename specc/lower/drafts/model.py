"""The drafter as a model inside a program: a small decoder, or an EAGLE-3 head, on rows of new tokens.

EAGLE-3 (arXiv:2503.01840, section 3.1): the target's aux features pass through fc; a row pairs the feature of position
p with the token of position p + 1: [norm(embedding), norm(feature)] is the attention's input, the feature is the
residual stream; one decoder layer; norm; lm_head over the draft vocabulary; target id = draft id + d2t[draft id].
Below the root no target features exist, and the head's own outputs (before the norm) take their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.build import BodyBuilder, GraphBuilder
from specc.lower.config import DraftConfig
from specc.lower.context import LowerContext
from specc.lower.transformer import Attend, ModelInfo, decoder_layer, linear, logical, norm, rope_tables

aten = torch.ops.aten

CACHES = ("draft_k_cache", "draft_v_cache")
LAYERED = ("k_cache", "v_cache", "k_table", "v_table")
Place = tuple[Node | int, Node | int]
"""The table rows [first, end) that new tokens take; nodes where a loop index decides."""


@dataclass(frozen=True, slots=True)
class DraftModel:
    """The drafter of a program. `weights` are the program names of what its forward pass reads."""

    info: ModelInfo
    eagle: bool
    window: int
    weights: tuple[str, ...]

    @property
    def offset(self) -> int:
        """Committed drafter rows minus committed tokens once the root's row is there: 1, for a head 0."""
        return 0 if self.eagle else 1

    @property
    def embedding(self) -> str:
        """Program name of the embedding table: a head without its own uses the target's."""
        own = self.info.name("embed_tokens")
        return own if own in self.weights else "embed_tokens"

    @property
    def vocabulary(self) -> int:
        """Rows of the output projection: the tokens that can be drafted."""
        return int(self.info.weights[self.info.head].shape[0])

    @property
    def d2t(self) -> str | None:
        """Program name of the offset table from draft ids to target ids; None for a shared vocabulary."""
        name = self.info.name("d2t")
        return name if name in self.weights else None


def draft_model(ctx: LowerContext, draft: DraftConfig) -> DraftModel:
    """The drafter that the context declares. Raises ValueError if it declares none."""
    if ctx.drafter is None:
        raise ValueError(f"draft method {draft.method} needs a drafter")
    info = ctx.drafter
    names = [name for name in info.weights if name.startswith(info.prefix)]
    if info.name("embed_tokens") not in names:
        names.append("embed_tokens")
    return DraftModel(info, draft.method == "eagle3", draft.window, tuple(names))


@dataclass(frozen=True, slots=True)
class Rows:
    """New tokens [B,M] with their positions [B,M] and, for a head, the features [B,M,H] that they pair with."""

    tokens: Node
    positions: Node
    hidden: Node | None


@dataclass(frozen=True, slots=True)
class Outputs:
    """Hidden states [B,M,H] before the final norm, and K, V: the rows [Ld,B,M,…], or the tables that now hold them."""

    hidden: Node
    k: Node
    v: Node


def _attend(
    b: GraphBuilder, n: Mapping[str, Node], place: Place | None, model: DraftModel, kept: dict[str, Node]
) -> Attend:
    """How rows see the prefix and each other: causally, or through node tables (by `mask` where there is one).

    `n` holds k_cache, v_cache, length, positions; with a place in tables also k_table, v_table [B,R,…].
    """
    prefix = (n["k_cache"], n["v_cache"], n["length"])
    tail = (model.info.scale, model.window)

    def attend(q: Node, k: Node, v: Node) -> Node:
        kept["k"], kept["v"] = k, v
        if place is None:
            return b.call(ops.causal_attention, q, *prefix, k, v, n["positions"], 0, *tail, name="attended")
        for name, rows in (("k", k), ("v", v)):
            table = n[f"{name}_table"]
            kept[name] = b.call(aten.slice_scatter.default, table, rows, 1, *place, name=f"{name}_nodes")
        new = (kept["k"], kept["v"])
        if "mask" in n:
            return b.call(ops.tree_attention, q, *prefix, *new, n["mask"], n["positions"], *tail, name="attended")
        return b.call(ops.causal_attention, q, *prefix, *new, n["positions"], place[0], *tail, name="attended")

    return attend


def forward(
    b: GraphBuilder,
    model: DraftModel,
    w: Mapping[str, Node],
    rows: Rows,
    state: Mapping[str, Node],
    place: Place | None = None,
) -> Outputs:
    """The drafter on new rows. `state`: k_cache, v_cache [Ld,B,C,…], length [B]; with a `place` in node tables also
    k_table, v_table [Ld,B,R,…], and for trees mask [B,M,R]."""
    if model.eagle:
        return (
            _eagle_chain(b, model, w, rows, state) if place is None else _eagle_layer(b, model, w, rows, state, place)
        )
    embedded = b.call(aten.embedding.default, w[model.embedding], rows.tokens, name="draft_embedded")
    rotary = rope_tables(b, model.info, rows.positions)
    shared = {**state, "positions": rows.positions}
    return _layers(b, model, w, embedded, rotary, shared, place)


def _layers(
    outer: GraphBuilder,
    model: DraftModel,
    w: Mapping[str, Node],
    embedded: Node,
    rotary: tuple[Node, Node],
    state: Mapping[str, Node],
    place: Place | None,
) -> Outputs:
    names = model.info.layer_weights
    per_layer = [name for name in LAYERED if name in state]
    sliced = {name: w[name] for name in names} | {name: state[name] for name in per_layer}
    bounds = {f"place_{i}": node for i, node in enumerate(place or ()) if isinstance(node, Node)}
    invariant = {name: node for name, node in state.items() if name not in per_layer} | bounds
    invariant |= {"cos": rotary[0], "sin": rotary[1]}
    b = BodyBuilder("layer", carried={"x": embedded}, sliced=sliced, invariant=invariant, keys=outer.keys)
    kept: dict[str, Node] = {}
    inside = None if place is None else (_inside(b, place[0], 0), _inside(b, place[1], 1))
    attend = _attend(b, b.inside, inside, model, kept)
    weights = logical(model.info, b.inside, names)
    out = decoder_layer(b, b["x"], weights, model.info.geometry, (b["cos"], b["sin"]), attend)
    trip = model.info.geometry.num_hidden_layers
    hidden, k, v = b.close(outer, trip, [out, kept["k"], kept["v"]], "draft_layers")
    return Outputs(hidden, k, v)


def _inside(b: BodyBuilder, bound: Node | int, number: int) -> Node | int:
    return b[f"place_{number}"] if isinstance(bound, Node) else bound


def _eagle_layer(
    b: GraphBuilder, model: DraftModel, w: Mapping[str, Node], rows: Rows, state: Mapping[str, Node], place: Place
) -> Outputs:
    """The head's only layer on nodes of a tree, whose rows go to `place` in the tables."""
    one = {name: b.call(aten.select.int, state[name], 0, 0) for name in LAYERED}
    hidden, k, v = _eagle_rows(b, model, w, rows, {**state, **one}, place)
    return Outputs(hidden, b.call(aten.unsqueeze.default, k, 0), b.call(aten.unsqueeze.default, v, 0))


def _eagle_chain(
    outer: GraphBuilder, model: DraftModel, w: Mapping[str, Node], rows: Rows, state: Mapping[str, Node]
) -> Outputs:
    """The head's only layer on a chain, as a loop of one iteration over its caches: passes then treat them as those of
    any stack, and its rows are written where they lie."""
    if rows.hidden is None:
        raise ValueError("an EAGLE-3 head needs features")
    invariant = {name: w[name] for name in model.weights}
    invariant |= {"length": state["length"], "tokens": rows.tokens, "positions": rows.positions}
    sliced = {name: state[name] for name in LAYERED if name in state}
    b = BodyBuilder("layer", carried={"x": rows.hidden}, sliced=sliced, invariant=invariant, keys=outer.keys)
    out = _eagle_rows(b, model, b.inside, Rows(b["tokens"], b["positions"], b["x"]), b.inside, None)
    return Outputs(*b.close(outer, model.info.geometry.num_hidden_layers, list(out), "draft_layers"))


def _eagle_rows(
    b: GraphBuilder,
    model: DraftModel,
    w: Mapping[str, Node],
    rows: Rows,
    state: Mapping[str, Node],
    place: Place | None,
) -> tuple[Node, Node, Node]:
    """Hidden states [B,M,H] of the head's layer, and its K and V: the rows [B,M,…], or the tables that hold them."""
    if rows.hidden is None:
        raise ValueError("an EAGLE-3 head needs features")
    info = model.info
    weights = logical(info, w, [name for name in model.weights if name.startswith(info.prefix)])
    eps, rotary = info.geometry.rms_norm_eps, rope_tables(b, info, rows.positions)
    embedded = b.call(aten.embedding.default, w[model.embedding], rows.tokens, name="draft_embedded")
    inputs = [norm(b, embedded, weights["input_layernorm"], eps), norm(b, rows.hidden, weights["hidden_norm"], eps)]
    attention_input = b.call(aten.cat.default, inputs, -1, name="attention_input")
    kept: dict[str, Node] = {}
    attend = _attend(b, {**state, "positions": rows.positions}, place, model, kept)
    out = decoder_layer(b, rows.hidden, weights, info.geometry, rotary, attend, attention_input=attention_input)
    return out, kept["k"], kept["v"]


def project_features(b: GraphBuilder, model: DraftModel, w: Mapping[str, Node], features: Node) -> Node:
    """fc: the target's aux features [B,M,F] -> [B,M,H] (EAGLE-3, equation of g)."""
    return linear(b, features, {"fc": w[model.info.name("fc")]}, "fc")


def draft_logits(b: GraphBuilder, model: DraftModel, w: Mapping[str, Node], hidden: Node) -> Node:
    """Final norm and output projection: hidden [B,M,H] -> logits [B,M,Vd] over the draft vocabulary."""
    normed = norm(b, hidden, w[model.info.name("norm")], model.info.geometry.rms_norm_eps)
    return b.call(aten.linear.default, normed, w[model.info.head], name="draft_logits")


def target_ids(b: GraphBuilder, model: DraftModel, w: Mapping[str, Node], token: Node) -> Node:
    """Draft ids as target ids, of any shape."""
    if model.d2t is None:
        return token
    offset = b.call(aten.index.Tensor, w[model.d2t], [token], name="d2t_offset")
    return b.call(aten.add.Tensor, token, offset, name="target_id")
