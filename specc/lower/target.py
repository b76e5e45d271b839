"""Token-major passes of a model over new tokens: the naive loops that `verify` and `prefill` are made of.

Each token is decoded as plain decoding would decode it after its own path: it looks up its parent, extends the
parent's path by itself, gathers the path's K/V rows by index and attends to the committed prefix and those rows.
The committed context is the parent -1: tables have N + 1 preallocated rows and the last one, reached as -1, belongs
to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.build import BodyBuilder
from specc.lower.context import LowerContext
from specc.lower.step import StepBuilder
from specc.lower.transformer import ModelInfo, decoder_layer, logical, rope_tables

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class TokenRows:
    """What a token loop leaves: hidden states before the final norm [B,N,H], aux features [B,N,F] or None,
    and the K/V rows of all nodes [L,B,N,Hkv,D]."""

    hidden: Node
    features: Node | None
    k_rows: Node
    v_rows: Node


def _row_table(b: StepBuilder, model: ModelInfo, like: Node, rows: int, name: str) -> Node:
    """Zeroed K or V rows [L,B,rows,Hkv,D]; rows -2: as many as `like` [B,M] has columns."""
    geometry = model.geometry
    shape = [geometry.num_hidden_layers, -1, rows, geometry.num_key_value_heads, geometry.head_dim]
    return b.call(ops.full_rows, like, shape, 0, model.dtype, name=name)


def _tables(b: StepBuilder, ctx: LowerContext, model: ModelInfo, tokens: Node, rows: int) -> dict[str, Node]:
    """What the token loop carries: K/V rows of the nodes and, for trees, every node's depth and padded path."""
    tables = {name: _row_table(b, model, tokens, rows, name) for name in ("k_table", "v_table")}
    if rows > 0:
        tables["depth_table"] = b.call(ops.full_rows, tokens, [-1, rows], -1, torch.int64, name="depth_table")
        shape = [-1, rows, ctx.max_path]
        tables["path_table"] = b.call(ops.full_rows, tokens, shape, -1, torch.int64, name="path_table")
    return tables


def _put_row(b: BodyBuilder, table: Node, row: Node, index: Node, name: str) -> Node:
    """table with its row number `index` (dim 1) replaced by row [B,1,…]."""
    one = b.call(aten.squeeze.dim, row, 1)
    return b.call(aten.select_scatter.default, table, one, 1, index, name=name)


@dataclass(slots=True)
class _LayerAttention:
    """Writes the token's K/V rows into the layer's node tables and attends to the prefix and the token's own path."""

    b: BodyBuilder
    tail: tuple[float, int, bool]
    tables: list[Node] = field(default_factory=list)

    def _put(self, table: str, row: Node, name: str) -> Node:
        put = _put_row(self.b, self.b[table], row, self.b["token"], name)
        self.tables.append(put)
        return put

    def __call__(self, q: Node, k: Node, v: Node) -> Node:
        b = self.b
        rows = self._put("k_table", k, "k_nodes"), self._put("v_table", v, "v_nodes")
        prefix = (b["k_cache"], b["v_cache"], b["length"])
        if "own" not in b.inside:
            return b.call(
                ops.causal_attention, q, *prefix, *rows, b["positions"], b["token"], *self.tail, name="attended"
            )
        path = b.call(aten.squeeze.dim, b["own"], 1)
        k_path = b.call(aten.index.Tensor, rows[0], [b["batch"], path], name="k_path")
        v_path = b.call(aten.index.Tensor, rows[1], [b["batch"], path], name="v_path")
        seen = (b["own_valid"], b["positions"])
        return b.call(ops.tree_attention, q, *prefix, k_path, v_path, *seen, *self.tail, name="attended")


def _layer_loop(
    outer: BodyBuilder, model: ModelInfo, x: Node, rotary: tuple[Node, Node], options: tuple[int, bool]
) -> tuple[Node, list[Node]]:
    """The loop over layers of one token; `options` are the attention's window and whether it is fused.

    Returns x after the last layer and [k_table, v_table, x before each layer, x after each layer].
    """
    names = model.layer_weights
    sliced = {name: outer[name] for name in (*names, "k_cache", "v_cache", "k_table", "v_table")}
    shared = ("length", "batch", "positions", "own", "own_valid")
    invariant: dict[str, Node] = {name: outer[name] for name in shared if name in outer.inside}
    invariant |= {"cos": rotary[0], "sin": rotary[1], "token": outer.index}
    b = BodyBuilder("layer", carried={"x": x}, sliced=sliced, invariant=invariant, keys=outer.keys)
    attend = _LayerAttention(b, (model.scale, *options))
    with b.spec("verify.attention", "target.family"):
        out = decoder_layer(b, b["x"], logical(model, b.inside, names), model.geometry, (b["cos"], b["sin"]), attend)
    results = b.close(outer, model.geometry.num_hidden_layers, [out, *attend.tables, b["x"], out], "layers")
    return results[0], results[1:]


def _own_path(b: BodyBuilder, max_path: int) -> Node:
    """The token's depth [B,1] and, in `b.inside`, its path `own` [B,1,P], from its parent's; updates both tables."""
    alone = b.call(aten.full_like.default, b["parent"], -1)
    parent = b.call(aten.where.self, b["valid"], b["parent"], alone, name="parent_or_committed")
    above = b.call(aten.index.Tensor, b["depth_table"], [b["batch"], parent], name="parent_depth")
    depth = b.call(aten.add.Tensor, above, 1, name="depth")
    path_above = b.call(aten.index.Tensor, b["path_table"], [b["batch"], parent], name="parent_path")
    column = b.call(ops.iota, depth, max_path)
    here = b.call(aten.eq.Tensor, column, b.call(aten.unsqueeze.default, depth, -1))
    token = b.call(aten.full_like.default, path_above, b.index)
    own = b.call(aten.where.self, here, token, path_above, name="own_path")
    b.inside["depth_table"] = _put_row(b, b["depth_table"], depth, b.index, "depth_nodes")
    b.inside["path_table"] = _put_row(b, b["path_table"], own, b.index, "path_nodes")
    b.inside["own_valid"] = b.call(aten.ge.Scalar, own, 0, name="own_valid")
    b.inside["own"] = own
    return depth


def _features(b: BodyBuilder, ctx: LowerContext, inputs: Node, outputs: Node) -> Node | None:
    if not ctx.aux_layers:
        return None
    chosen = inputs if ctx.aux_of == "input" else outputs
    parts = [b.call(aten.select.int, chosen, 0, layer) for layer in ctx.aux_layers]
    return b.call(aten.cat.default, parts, -1, name="features")


def token_loop(
    b: StepBuilder,
    ctx: LowerContext,
    model: ModelInfo,
    tokens: Node,
    parent: Node | None,
    valid: Node | None,
    *,
    window: int = 0,
    caches: tuple[str, str, str] = ("k_cache", "v_cache", "length"),
    trip: int | None,
) -> TokenRows:
    """The naive program over tokens [B,N]: a tree by `parent`, `valid` [B,N], or a chain where `parent` is None.

    `caches` names the slots of the committed K, V [L,B,C,Hkv,D] and length [B]. `trip` None: as many as tokens.
    """
    rows = ctx.nodes + 1 if parent is not None else -2
    carried, sliced = _tables(b, ctx, model, tokens, rows), {"token": tokens}
    if parent is not None and valid is not None:
        sliced |= {"parent": parent, "valid": valid}
    invariant = {name: b.slot(slot) for name, slot in zip(("k_cache", "v_cache", "length"), caches, strict=True)}
    invariant |= {name: b.weight(name) for name in model.layer_weights}
    batch = b.call(ops.batch_index, tokens, name="batch")
    invariant |= {"batch": batch, "embedding": b.weight(model.name("embed_tokens"))}
    body = BodyBuilder("token", carried=carried, sliced=sliced, invariant=invariant, keys=b.keys)
    order = list(carried)
    if parent is not None:
        depth = _own_path(body, ctx.max_path)
    else:
        depth = body.call(aten.full_like.default, body["token"], body.index, name="depth")
    at = body.call(aten.add.Tensor, body.call(aten.unsqueeze.default, body["length"], 1), depth, name="positions")
    body.inside["positions"] = at
    rotary = rope_tables(body, model, at)
    x = body.call(aten.embedding.default, body["embedding"], body["token"], name="embedded")
    hidden, tables = _layer_loop(body, model, x, rotary, (window, ctx.fused_attention))
    features = _features(body, ctx, tables[2], tables[3])
    body.inside["k_table"], body.inside["v_table"] = tables[0], tables[1]
    stacked = [hidden] if features is None else [hidden, features]
    out = body.close(b, trip, [*(body.inside[name] for name in order), *stacked], "tokens")
    k_rows, v_rows = out[0], out[1]
    if parent is not None:
        k_rows = b.call(aten.narrow.default, k_rows, 2, 0, rows - 1, name="k_rows")
        v_rows = b.call(aten.narrow.default, v_rows, 2, 0, rows - 1, name="v_rows")
    tail = out[len(order) :]
    return TokenRows(tail[0], tail[1] if features is not None else None, k_rows, v_rows)
