"""Token-major passes of a model over new tokens: the naive loops that `verify` and `prefill` are made of.

Each token is decoded as plain decoding would decode it after its own path: it looks up its parent, extends the
parent's path by itself, gathers the path's K/V rows by index and attends to the committed prefix and those rows.
The committed context is the parent -1: tables have N + 1 preallocated rows and the last one, reached as -1, belongs
to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.build import BodyBuilder
from specc.lower.context import LowerContext
from specc.lower.mixers import Mixer, put_row, tables
from specc.lower.stack import Position, positions
from specc.lower.step import StepBuilder
from specc.lower.transformer import logical, residual_layer, rope_tables

aten = torch.ops.aten
Shown = dict[tuple[int, str], Node]


@dataclass(frozen=True, slots=True)
class TokenRows:
    """What a token loop leaves: hidden states before the final norm [B,N,H], aux features [B,N,F] or None, and by name
    what it carried (`mixers.tables`): rows of all nodes [trips,B,N,…], states and windows of chains [trips,B,…]."""

    hidden: Node
    features: Node | None
    tables: dict[str, Node]


def _path_tables(b: StepBuilder, ctx: LowerContext, tokens: Node, rows: int) -> dict[str, Node]:
    """Every node's depth and padded path, for trees with attention layers."""
    shape = [-1, rows, ctx.max_path]
    return {
        "depth_table": b.call(ops.full_rows, tokens, [-1, rows], -1, torch.int64, name="depth_table"),
        "path_table": b.call(ops.full_rows, tokens, shape, -1, torch.int64, name="path_table"),
    }


SHARED = ("length", "batch", "positions", "own", "own_valid", "parent_or_committed", "live", "cos", "sin")


def _layer_loop(
    outer: BodyBuilder, ctx: LowerContext, x: Node, carried: list[str], window: int
) -> tuple[Node, dict[str, Node], Shown]:
    """The loop over layers of one token: x after the last layer, what it carried, and by position in the period and
    kind what aux layers show of themselves [trips,B,1,F]."""
    model = ctx.target
    names = model.layer_weights
    caches = [name for name in outer.inside if name.endswith(("k_cache", "v_cache"))]
    sliced = {name: outer[name] for name in (*names, *caches, *carried)}
    invariant = {name: outer[name] for name in SHARED if name in outer.inside} | {"token": outer.index}
    b = BodyBuilder("layer", carried={"x": x}, sliced=sliced, invariant=invariant, keys=outer.keys)
    written: dict[str, Node] = {}
    shown: Shown = {}
    out = b["x"]
    for position in positions(model.geometry):
        before = out
        weights = logical(model, b.inside, names, position.prefix)
        mixer = Mixer(b, ctx, position, weights, (_scale(ctx, position), window, ctx.fused_attention))
        with b.spec("verify.recurrence" if position.recurrent else "verify.attention", "target.family"):
            out = residual_layer(b, before, weights, model.geometry, mixer, position.layer.moe)
        written |= mixer.written
        for kind in sorted({f.of for f in ctx.aux if f.layer % model.geometry.period == position.index}):
            shown[position.index, kind] = _shown(kind, before, out, mixer)
    results = b.close(outer, model.trips, [out, *written.values(), *shown.values()], "layers")
    first = 1 + len(written)
    return results[0], dict(zip(written, results[1:first], strict=True)), dict(zip(shown, results[first:], strict=True))


def _shown(kind: str, before: Node, after: Node, mixer: Mixer) -> Node:
    """What a layer shows a drafter: the residual stream before or after it, or its readout. Raises ValueError for the
    readout of an attention layer, which specs cannot ask for."""
    if kind != "readout":
        return before if kind == "input" else after
    if mixer.readout is None:
        raise ValueError(f"layer {mixer.position.index} of the period has no state to read out")
    return mixer.readout


def _scale(ctx: LowerContext, position: Position) -> float:
    return 0.0 if position.recurrent else ctx.target.scale


def _committed_parent(b: BodyBuilder) -> None:
    """The parent's number [B,1] in `b.inside`; -1, the committed context, for padding nodes."""
    alone = b.call(aten.full_like.default, b["parent"], -1)
    b.inside["parent_or_committed"] = b.call(
        aten.where.self, b["valid"], b["parent"], alone, name="parent_or_committed"
    )


def _own_path(b: BodyBuilder, max_path: int) -> Node:
    """The token's depth [B,1] and, in `b.inside`, its path `own` [B,1,P], from its parent's; updates both tables."""
    parent = b["parent_or_committed"]
    above = b.call(aten.index.Tensor, b["depth_table"], [b["batch"], parent], name="parent_depth")
    depth = b.call(aten.add.Tensor, above, 1, name="depth")
    path_above = b.call(aten.index.Tensor, b["path_table"], [b["batch"], parent], name="parent_path")
    column = b.call(ops.iota, depth, max_path)
    here = b.call(aten.eq.Tensor, column, b.call(aten.unsqueeze.default, depth, -1))
    token = b.call(aten.full_like.default, path_above, b.index)
    own = b.call(aten.where.self, here, token, path_above, name="own_path")
    b.inside["depth_table"] = put_row(b, b["depth_table"], depth, b.index, "depth_nodes")
    b.inside["path_table"] = put_row(b, b["path_table"], own, b.index, "path_nodes")
    b.inside["own_valid"] = b.call(aten.ge.Scalar, own, 0, name="own_valid")
    b.inside["own"] = own
    return depth


def _features(b: BodyBuilder, ctx: LowerContext, shown: Shown) -> Node | None:
    if not ctx.aux:
        return None
    period = ctx.target.geometry.period
    parts = [b.call(aten.select.int, shown[f.layer % period, f.of], 0, f.layer // period) for f in ctx.aux]
    return b.call(aten.cat.default, parts, -1, name="features")


def _invariants(b: StepBuilder, ctx: LowerContext, tokens: Node) -> dict[str, Node]:
    """What every token sees: weights, committed K/V rows, the length."""
    invariant: dict[str, Node] = {}
    for position in positions(ctx.target.geometry):
        if not position.recurrent:
            names = (f"{position.prefix}k_cache", f"{position.prefix}v_cache")
            invariant |= {name: b.slot(name) for name in names}
    invariant |= {"length": b.slot("length")} | {name: b.weight(name) for name in ctx.target.layer_weights}
    batch = b.call(ops.batch_index, tokens, name="batch")
    return invariant | {"batch": batch, "embedding": b.weight(ctx.target.name("embed_tokens"))}


def _place(body: BodyBuilder, ctx: LowerContext, tree: bool) -> None:
    """The token's depth, positions and rotary tables in `body.inside`, where some layer attends."""
    if tree:
        _committed_parent(body)
    if not ctx.attends:
        return
    if tree:
        depth = _own_path(body, ctx.max_path)
    else:
        depth = body.call(aten.full_like.default, body["token"], body.index, name="depth")
    at = body.call(aten.add.Tensor, body.call(aten.unsqueeze.default, body["length"], 1), depth, name="positions")
    body.inside["positions"] = at
    body.inside["cos"], body.inside["sin"] = rope_tables(body, ctx.target, at)


def token_loop(
    b: StepBuilder,
    ctx: LowerContext,
    tokens: Node,
    parent: Node | None = None,
    valid: Node | None = None,
    *,
    live: Node | None = None,
    record: bool = False,
    trip: int | None,
) -> TokenRows:
    """The target's naive program over tokens [B,N]: a tree by `parent`, `valid` [B,N], or a chain without them.

    `live` bool [B,N] (chains): tokens that count; the others, which come last, leave recurrent states as they are.
    `record`: keep what commit needs of recurrent layers. `trip` None: as many as tokens.
    """
    tree = parent is not None
    rows = ctx.nodes + 1 if tree else -2
    sliced = {"token": tokens}
    if parent is not None and valid is not None:
        sliced |= {"parent": parent, "valid": valid}
    if live is not None and ctx.target.geometry.recurrent:
        sliced["live"] = live
    layered: dict[str, Node] = {}
    for position in positions(ctx.target.geometry):
        layered |= tables(b, ctx, position, tokens, rows, tree, record)
    carried = layered | (_path_tables(b, ctx, tokens, rows) if tree and ctx.attends else {})
    invariant = _invariants(b, ctx, tokens)
    body = BodyBuilder("token", carried=carried, sliced=sliced, invariant=invariant, keys=b.keys)
    _place(body, ctx, tree)
    x = body.call(aten.embedding.default, body["embedding"], body["token"], name="embedded")
    hidden, written, shown = _layer_loop(body, ctx, x, list(layered), 0)
    features = _features(body, ctx, shown)
    body.inside |= written
    stacked = [hidden] if features is None else [hidden, features]
    out = body.close(b, trip, [*(body.inside[name] for name in carried), *stacked], "tokens")
    kept = dict(zip(layered, out, strict=False))
    if tree:
        for name, node in kept.items():
            kept[name] = b.call(aten.narrow.default, node, 2, 0, rows - 1, name=f"{name}_rows")
    tail = out[len(carried) :]
    return TokenRows(tail[0], tail[1] if features is not None else None, kept)
