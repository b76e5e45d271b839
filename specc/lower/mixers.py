"""How one token of a token loop mixes with earlier ones, layer by layer: attention, or the delta rule.

A tree's node looks up its parent's state (and its path's K/V rows) in tables of all nodes and writes its own row; a
chain's state simply goes on from token to token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.build import BodyBuilder
from specc.ir.ops.delta_math import rule_dtype
from specc.lower.context import LowerContext
from specc.lower.delta import delta_layer, heads
from specc.lower.stack import Position, candidates_of, committed_of, delta_of, row_dtype, row_shapes
from specc.lower.step import StepBuilder
from specc.lower.transformer import attention_layer

aten = torch.ops.aten


def put_row(b: BodyBuilder, table: Node, row: Node, index: Node, name: str) -> Node:
    """table with its row number `index` (dim 1) replaced by row [B,1,…]."""
    return put_one(b, table, b.call(aten.squeeze.dim, row, 1), index, name)


def put_one(b: BodyBuilder, table: Node, one: Node, index: Node, name: str) -> Node:
    """table with its row number `index` (dim 1) replaced by one [B,…]."""
    return b.call(aten.select_scatter.default, table, one, 1, index, name=name)


def recorded(ctx: LowerContext) -> tuple[str, ...]:
    """The per-node rows of recurrent layers that verify leaves to commit."""
    return () if ctx.state_commit is None else candidates_of(delta_of(ctx.target.geometry), ctx.state_commit)


def tables(
    b: StepBuilder, ctx: LowerContext, position: Position, like: Node, rows: int, tree: bool, record: bool
) -> dict[str, Node]:
    """What the token loop carries for a position; rows -2: as many as `like` [B,M] has columns.

    Attention: zeroed K and V rows [trips,B,rows,Hkv,D]. Delta rule: the state and the convolution's window as they are
    (chains), or in tables [trips,B,rows,…] whose last row, reached as -1, is the committed one (trees); and, with
    `record`, zeroed rows of what commit will need.
    """
    model = ctx.target

    def zeros(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Node:
        full = [model.trips, -1, rows, *shape]
        return b.call(ops.full_rows, like, full, 0, dtype, name=position.prefix + name)

    if not position.recurrent:
        shape = (model.geometry.num_key_value_heads, model.geometry.head_dim)
        return {f"{position.prefix}{name}": zeros(name, shape, model.dtype) for name in ("k_table", "v_table")}
    made = {}
    for name in committed_of(delta_of(model.geometry)):
        slot = b.slot(position.prefix + name)
        table = f"{position.prefix}{name}_table" if tree else position.prefix + name
        made[table] = b.call(ops.root_table, slot, rows, -1, name=table) if tree else slot
    shapes = row_shapes(delta_of(model.geometry))
    for name in recorded(ctx) if record else ():
        if not (tree and name == "state_candidate"):
            dtype = row_dtype(name, model.dtype, ctx.state_dtype)
            made[position.prefix + name] = zeros(name, shapes[name], dtype)
    return made


@dataclass(slots=True)
class Mixer:
    """One position inside the loop over layers of one token; `written` collects its carried values afterwards,
    `readout` is what a recurrent layer read out of its state [B,1,HV V]."""

    b: BodyBuilder
    ctx: LowerContext
    position: Position
    weights: dict[str, Node]
    tail: tuple[float, int, bool]
    written: dict[str, Node] = field(default_factory=dict)
    readout: Node | None = None

    def __call__(self, hidden: Node) -> Node:
        """The normed input [B,1,H] -> what the layer adds to the residual stream."""
        geometry = self.ctx.target.geometry
        if self.position.recurrent:
            dtype = rule_dtype(self.ctx.state_dtype)
            added, self.readout = delta_layer(self.b, hidden, self.weights, geometry, dtype, self.recur)
            return added
        rotary = (self.b["cos"], self.b["sin"])
        return attention_layer(self.b, hidden, self.weights, geometry, rotary, self.attend)

    def _own(self, name: str) -> Node:
        return self.b[self.position.prefix + name]

    def _keep(self, name: str, value: Node) -> Node:
        self.written[self.position.prefix + name] = value
        return value

    def attend(self, q: Node, k: Node, v: Node) -> Node:
        """Writes the token's K/V rows, then attends to the prefix and the token's own path (or all rows so far)."""
        b, token = self.b, self.b["token"]
        rows = [
            self._keep(table, put_row(b, self._own(table), row, token, f"{table[0]}_nodes"))
            for table, row in (("k_table", k), ("v_table", v))
        ]
        prefix = (self._own("k_cache"), self._own("v_cache"), b["length"])
        if "own" not in b.inside:
            return b.call(ops.causal_attention, q, *prefix, *rows, b["positions"], token, *self.tail, name="attended")
        path = b.call(aten.squeeze.dim, b["own"], 1)
        k_path = b.call(aten.index.Tensor, rows[0], [b["batch"], path], name="k_path")
        v_path = b.call(aten.index.Tensor, rows[1], [b["batch"], path], name="v_path")
        seen = (b["own_valid"], b["positions"])
        return b.call(ops.tree_attention, q, *prefix, k_path, v_path, *seen, *self.tail, name="attended")

    def _before(self, name: str) -> Node:
        """The parent's state or window [B,…]."""
        if "parent_or_committed" not in self.b.inside:
            return self._own(name)
        where = [self.b["batch"], self.b["parent_or_committed"]]
        row = self.b.call(aten.index.Tensor, self._own(f"{name}_table"), where, name=f"parent_{name}")
        return self.b.call(aten.squeeze.dim, row, 1)

    def _after(self, name: str, value: Node) -> None:
        if "parent_or_committed" not in self.b.inside:
            self._keep(name, value)
            return
        table = f"{name}_table"
        self._keep(table, put_one(self.b, self._own(table), value, self.b["token"], f"{name}_nodes"))

    def recur(self, mixed: Node, g: Node, beta: Node) -> Node:
        """Convolution and delta rule from the parent's window and state; rows that are not live change neither."""
        b, delta = self.b, delta_of(self.ctx.target.geometry)
        live = b.inside.get("live")
        q, k, v = heads(b, self._convolved(mixed, live), delta)
        if live is not None:
            shown = b.call(aten.unsqueeze.default, live, -1)
            nothing = b.call(aten.zeros_like.default, g)
            g, beta = (b.call(aten.where.self, shown, value, nothing) for value in (g, beta))
        rule = b.call(ops.delta_rule, self._before("state"), q, k, v, g, beta, name="delta_rule")
        o, u, state = b.item(rule, 0, "o"), b.item(rule, 1, "u"), b.item(rule, 2, "state_after")
        self._after("state", state)
        inputs = {"conv_candidate": mixed, "k_input": k, "v_input": v, "g_input": g, "beta_input": beta}
        self._record(inputs | {"k_factor": k, "u_factor": u, "g_factor": g}, state)
        return o

    def _convolved(self, mixed: Node, live: Node | None) -> Node:
        """silu of the convolution along the token's path, or of its input where the layers have none."""
        b = self.b
        if "conv" not in self.weights:
            return b.call(aten.silu.default, mixed, name="activated")
        conv = (self.weights["conv"], self.weights.get("conv_bias"), live)
        both = b.call(ops.short_conv, self._before("conv_window"), mixed, *conv, name="short_conv")
        self._after("conv_window", b.item(both, 1, "window"))
        return b.item(both, 0, "convolved")

    def _record(self, rows: dict[str, Node], state: Node) -> None:
        """Fills the rows that are carried for commit; in a chain the states are rows of their own."""
        token, prefix = self.b["token"], self.position.prefix
        for name, row in rows.items():
            if prefix + name in self.b.inside:
                self._keep(name, put_row(self.b, self._own(name), row, token, f"{name}_nodes"))
        name = "state_candidate"
        if prefix + name in self.b.inside:
            self._keep(name, put_one(self.b, self._own(name), state, token, f"{name}_nodes"))
