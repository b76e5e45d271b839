"""One token's computation turned into all tokens' at once: op by op, and the loop over layers around its body."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from specc.ir import ops
from specc.ir.build import GraphBuilder, output_values
from specc.ir.dims import is_symbolic
from specc.ir.edit import LoopParts, inherit, is_impure, is_loop, loop_parts
from specc.ir.recurrence import recurrence_of
from specc.ir.rowwise import NotRowWise, result_axis
from specc.ir.scope import Scope, named_arguments, with_arguments
from specc.passes.layer_major.values import (
    Batched,
    Carried,
    Dropped,
    Index,
    Loop,
    NodeRows,
    ParentRow,
    Recurred,
    Refused,
    Result,
    Rows,
    Several,
    StateAfter,
    Uniform,
    Written,
    describe,
    view,
)

aten = torch.ops.aten
NAME = "layer-major"


@dataclass(slots=True)
class Batcher:
    """Emits the batched form of a body into `builder`.

    `scope` is the body as it was, inside the loop over tokens `token`; `tokens` is N (may be symbolic); `read_after`
    holds the carried values that are read behind the loop; `layers` emits a loop over layers, `recur` a recurrent op;
    `env` maps the body's nodes to what they became.
    """

    builder: GraphBuilder
    scope: Scope
    token: Scope
    tokens: int
    read_after: frozenset[int]
    layers: Callable[[Batcher, LoopParts], tuple[Batched, ...]]
    recur: Callable[[Batcher, Node], Recurred]
    env: dict[Node, Result] = field(default_factory=dict)

    def run(self) -> list[Result | Any]:
        """Emits every node of the body; returns what the body returned. Raises Refused."""
        module = self.scope.module
        for node in module.graph.nodes:
            if node.op == "call_function":
                self.env[node] = self._emit(node)
        return [self.env[item] if isinstance(item, Node) else item for item in output_values(module)]

    def table_rows(self, place: int) -> int:
        """The number of rows of carried table `place`."""
        parts = self.token.loop
        assert parts is not None
        inside = parts.carried_inside[place]
        by_layer = any(inside in inner.loop.sliced for inner in self.token.inner("layer") if inner.loop is not None)
        return int(parts.carried[place].meta["val"].shape[1 + by_layer])

    def _emit(self, node: Node) -> Result:
        if is_loop(node):
            return Loop(self._layers(loop_parts(node)))
        if node.target is operator.getitem:
            return self._item(node)
        if is_impure(node):
            raise Refused(f"`{node.name}` has an effect besides its result")
        operands = [self.env[argument] for argument in node.all_input_nodes]
        if all(isinstance(operand, Uniform) for operand in operands):
            return Uniform(self._call(node, node.args, node.kwargs))
        if all(isinstance(operand, Index) for operand in operands):
            return self._number(node)
        if recurrence_of(node.target) is not None:
            return self.recur(self, node)
        special = _SPECIAL.get(node.target)
        made = None if special is None else special(self, node)
        return self._rows(node) if made is None else made

    def _call(self, node: Node, args: Any, kwargs: Any) -> Node:
        """The op on batched operands, with the spec keys and provenance of the old node."""
        args, kwargs = map_arg((args, kwargs), self._node)
        assert callable(node.target)
        made = self.builder.call(node.target, *args, name=node.name, **kwargs)
        inherit(made, node, NAME)
        return made

    def _node(self, argument: Node) -> Node:
        value = self.env.get(argument)
        if isinstance(value, (Uniform, Rows)):
            return value.node
        return argument

    def _item(self, node: Node) -> Result:
        source, place = node.args
        assert isinstance(source, Node)
        assert isinstance(place, int)
        value = self.env[source]
        if isinstance(value, Loop):
            return value.results[place]
        if isinstance(value, Recurred):
            if place == value.result:
                return value.state
            if isinstance(value.node.meta["val"], torch.Tensor):
                return Rows(value.node, 1)
            value = Several(value.node, 1)
        if not isinstance(value, (Uniform, Several)):
            raise Refused(f"`{node.name}` takes a part of what is not a tuple")
        made = self.builder.item(value.node, place, node.name)
        inherit(made, node, NAME)
        return Uniform(made) if isinstance(value, Uniform) else Rows(made, value.axis)

    def _number(self, node: Node) -> Index:
        """index + c, index - c."""
        left, right = node.args
        if isinstance(left, int) and node.target is operator.add:
            left, right = right, left
        value = self.env[left] if isinstance(left, Node) else None
        known = node.target in (operator.add, operator.sub)
        if not known or not isinstance(value, Index) or not isinstance(right, int):
            raise Refused(f"`{node.name}` computes with the token's number in an unknown way")
        return Index(value.offset + (right if node.target is operator.add else -right))

    def _rows(self, node: Node) -> Result:
        """A row-wise op on rows. Raises Refused with the reason where it isn't one, or an operand isn't rows."""
        args, kwargs = map_arg((node.args, node.kwargs), self._view)
        return self._typed(node, args, kwargs, node.args, node.kwargs)

    def _view(self, argument: Node) -> Any:
        value = self.env[argument]
        if isinstance(value, (Uniform, Rows)):
            return view(value)
        raise Refused(f"`{argument.name}` ({describe(value)}) is used where the pass can't follow it")

    def _typed(self, node: Node, views: Any, named_views: Any, args: Any, kwargs: Any) -> Result:
        try:
            axis = result_axis(node.target, views, named_views)
        except NotRowWise as reason:
            raise Refused(f"`{node.name}` ({node.target}) can't be done for all tokens at once: {reason}") from None
        made = self._call(node, args, kwargs)
        self._check_type(node.meta["val"], made.meta["val"], axis, node)
        if isinstance(made.meta["val"], torch.Tensor):
            return Rows(made, axis)
        return Several(made, axis)

    def _check_type(self, one: Any, every: Any, axis: int, node: Node) -> None:
        """All tokens' value must have one token's type with N at the token axis."""
        if not isinstance(one, torch.Tensor):
            for old, new in zip(one, every, strict=True):
                self._check_type(old, new, axis, node)
            return
        expected = list(one.shape)
        if one.dtype != every.dtype or expected[axis] != 1:
            raise Refused(f"`{node.name}` has no token dim of size 1 at {axis}")
        expected[axis] = self.tokens
        if list(every.shape) != expected:
            raise Refused(f"`{node.name}` for all tokens has shape {list(every.shape)} instead of {expected}")

    def _layers(self, parts: LoopParts) -> tuple[Batched, ...]:
        if parts.axis != "layer":
            raise Refused(f"`{parts.node.name}` is a loop over {parts.axis}s inside the loop over tokens")
        return self.layers(self, parts)

    # Ops that see tables or the token's number.

    def index_fill(self, node: Node) -> Result | None:
        """full_like(x, token number) -> the numbers of all tokens, broadcast to the shape of x."""
        like, number = (self.env[item] if isinstance(item, Node) else item for item in node.args[:2])
        if not isinstance(number, Index):
            return None
        if not isinstance(like, Rows) or like.axis != 1 or like.node.meta["val"].dtype != torch.int64 or node.kwargs:
            raise Refused(f"`{node.name}` spreads the token's number over what is not int64 rows [B,N,...]")
        size = -2 if is_symbolic(self.tokens) else self.tokens
        made = self.builder.call(ops.iota, like.node, size, name="token_number")
        inherit(made, node, NAME)
        if number.offset:
            made = self.builder.call(aten.add.Tensor, made, number.offset)
        for _ in range(like.node.meta["val"].dim() - 2):
            made = self.builder.call(aten.unsqueeze.default, made, -1)
        made = self.builder.call(aten.expand_as.default, made, like.node, name=node.name)
        inherit(made, node, NAME)
        return Rows(made, 1)

    def squeeze(self, node: Node) -> Result | None:
        """squeeze(x, token dim): nothing to do for all tokens."""
        source, dim = node.args
        assert isinstance(source, Node)
        assert isinstance(dim, int)
        value = self.env[source]
        if isinstance(value, Rows) and dim % value.node.meta["val"].dim() == value.axis:
            return Dropped(value.node, value.axis)
        if isinstance(value, ParentRow) and dim == 1:
            return replace(value, dropped=True)
        return None

    def index(self, node: Node) -> Result | None:
        """table[batch, numbers of one row each]: the rows of the tokens' parents, if a recurrent op takes them so."""
        table, indices = node.args
        held = self.env[table] if isinstance(table, Node) else None
        if not isinstance(held, Carried) or held.committed is None:
            return None
        assert isinstance(indices, (list, tuple))
        number = self.env[indices[-1]] if isinstance(indices[-1], Node) else None
        if len(indices) != 2 or not isinstance(number, Rows) or number.axis != 1:
            raise Refused(f"`{node.name}` does not read one row of a table of states per token")
        return ParentRow(held, number)

    def unsqueeze(self, node: Node) -> Result | None:
        """Gives a dropped token dim back."""
        source, dim = node.args
        value = self.env[source] if isinstance(source, Node) else None
        if isinstance(value, Dropped) and isinstance(dim, int) and dim % value.node.meta["val"].dim() == value.axis:
            return Rows(value.node, value.axis)
        return None

    def write(self, node: Node) -> Result | None:
        """select_scatter(table, row, dim, token number + shift): the table's rows are the rows of all tokens."""
        table, row, dim, place = (self.env[item] if isinstance(item, Node) else item for item in node.args)
        if not isinstance(table, Carried):
            return None
        if isinstance(row, StateAfter) and dim == 1 and isinstance(place, Index):
            return self._state_rows(node, table, row, place)
        if not isinstance(place, Index) or not isinstance(row, Dropped) or row.axis != dim:
            raise Refused(f"`{node.name}` does not write the token's own row at the token's own number")
        size = self.table_rows(table.place)
        if place.offset < 0 or place.offset + self.tokens > size:
            raise Refused(f"`{node.name}` writes rows from {place.offset} on into a table of {size} rows")
        if row.node.meta["val"].dtype != node.meta["val"].dtype:
            raise Refused(f"`{node.name}` converts the row to the table's dtype")
        return Written(table.place, table.sliced, Rows(row.node, row.axis), place.offset, size)

    def _state_rows(self, node: Node, table: Carried, state: StateAfter, place: Index) -> Written:
        size = self.table_rows(table.place)
        if place.offset < 0 or place.offset + self.tokens > size:
            raise Refused(f"`{node.name}` writes rows from {place.offset} on into a table of {size} rows")
        rows = None if state.states is None else Rows(state.states, 1)
        return Written(table.place, table.sliced, rows, place.offset, size)

    def narrow(self, node: Node) -> Result | None:
        """The part of a written table that holds the tokens' rows."""
        source, dim, start, length = node.args
        value = self.env[source] if isinstance(source, Node) else None
        if not isinstance(value, Written):
            return None
        if value.rows is not None and dim == value.rows.axis and start == value.shift and length == self.tokens:
            return NodeRows(value.rows)
        raise Refused(f"`{node.name}` takes other rows of a table than those of the tokens")

    def attention(self, node: Node) -> Result | None:
        """Attention over node tables: token t reads rows j <= t, at token distance t - j >= 0."""
        arguments = named_arguments(node)
        values = {name: self.env[item] if isinstance(item, Node) else item for name, item in arguments.items()}
        causal = node.target is ops.causal_attention
        if not causal and not getattr(values["mask"], "ancestors", False):
            raise Refused(f"`{node.name}` has no ancestor mask, so a token may read rows of later ones")
        if causal and values["offset"] != Index(0):
            raise Refused(f"`{node.name}` is not causal from the token's own number on")
        rows = {name: self._node_rows(node, values[name], causal) for name in ("k_new", "v_new")}
        replaced: dict[str, Any] = {name: value.node for name, value in rows.items()}
        views = {name: view(Uniform(value.node)) for name, value in rows.items()}
        if causal:
            replaced["offset"] = views["offset"] = 0
        for name, argument in arguments.items():
            if name not in views:
                views[name] = self._view(argument) if isinstance(argument, Node) else argument
        return self._typed(node, (), views, with_arguments(node, **replaced), {})

    def _node_rows(self, node: Node, value: Any, causal: bool) -> Rows:
        """All tokens' K or V rows for an attention, where column j of its mask is token j."""
        if isinstance(value, NodeRows):
            return value.rows
        if (
            isinstance(value, Written)
            and value.rows is not None
            and value.shift == 0
            and (causal or value.size == self.tokens)
        ):
            return value.rows
        if isinstance(value, Carried):
            raise Refused(f"`{node.name}` reads a table before the token's own row is in it")
        raise Refused(f"`{node.name}` reads K or V rows that are not the tokens' own ({describe(value)})")


_SPECIAL: dict[object, Callable[[Batcher, Node], Result | None]] = {
    aten.full_like.default: Batcher.index_fill,
    aten.squeeze.dim: Batcher.squeeze,
    aten.unsqueeze.default: Batcher.unsqueeze,
    aten.select_scatter.default: Batcher.write,
    aten.narrow.default: Batcher.narrow,
    aten.index.Tensor: Batcher.index,
    ops.tree_attention: Batcher.attention,
    ops.causal_attention: Batcher.attention,
}
