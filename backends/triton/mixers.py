"""A recurrent layer's projection joins its convolution and its gates: one launch instead of two.

    p = fused_linear(x, W, None, norm, …)
    y, g, beta = token_conv_gates_(window, p[:C], …, p[a:], p[b:], …)
                    ->      p, y, g, beta = linear_token_conv_gates_(window, x, W, norm, …, a, b)

and likewise `tree_conv_gates_`. The convolution goes feature by feature, and a program of the product owns features of
all tokens: it has what it needs when its product ends. Where a layer's product is divided otherwise (see
`joined_config`), the op is two launches again.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from torch.fx import GraphModule, Node

from specc.backends.triton.regions.effects import launches_nothing
from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.edit import Editor, finish, modules
from specc.ir.effects import flat_nodes, is_view
from specc.ir.prune import prune
from specc.ir.scope import named_arguments

ORIGIN = "join-mixer"
JOINED: Mapping[Any, Any] = {
    ops.token_conv_gates_: ops.linear_token_conv_gates_,
    ops.tree_conv_gates_: ops.linear_tree_conv_gates_,
}


class _Refused(Exception):
    """A projection keeps its launch to itself; the message says why."""


def joined_mixers(module: GraphModule) -> tuple[GraphModule, list[str]]:
    """A copy of a step graph with one op for projection, convolution and gates, and why others stay apart."""
    made = clone(module)
    notes: list[str] = []
    for block in list(modules(made)):
        for node in [item for item in block.graph.nodes if item.target in JOINED]:
            try:
                _join(block, node)
            except _Refused as reason:
                notes.append(f"{node.name} is a launch apart from the projection: {reason}")
    prune(made)
    return finish(made), notes


def _join(block: GraphModule, node: Node) -> None:
    """One op in the place of the projection. Raises _Refused."""
    given = named_arguments(node)
    projection = _whole(given["x"])
    if projection.target is not ops.fused_linear:
        raise _Refused(f"it reads `{projection.name}`")
    product = named_arguments(projection)
    if product["bias"] is not None or product["residual"] is not None or product["activation"] != "none":
        raise _Refused("the projection does more than a product")
    if _place(given["x"], projection) != 0:
        raise _Refused("its channels are not the projection's first features")
    a_at, b_at = (_place(given[name], projection) for name in ("a", "b"))
    _nothing_between(projection, node)
    extra = given["live"] if node.target is ops.token_conv_gates_ else given["parent_row"]
    arguments: list[Any] = [
        given["window"], product["x"], product["weight"], product["norm_weight"], product["eps"], given["weight"],
        given["bias"], extra, given["a_log"], given["dt_bias"], given["scale"], a_at, b_at,
    ]  # fmt: skip
    if node.target is ops.tree_conv_gates_:
        arguments.append(given["kept"])
    order = {item: number for number, item in enumerate(block.graph.nodes)}
    if any(order[item] > order[projection] for item in flat_nodes(arguments)):
        raise _Refused("an operand comes after the projection")
    editor = Editor(block, ORIGIN)
    with editor.before(projection, node):
        made = editor.call(JOINED[node.target], *arguments, name="mixer")
        results = [editor.item(made, number) for number in range(4)]
    editor.replace(projection, results[0])
    for user in list(node.users):
        number: Any = user.args[1]
        editor.replace(user, results[1 + number])
    for item in (*node.users, node, projection):
        if item in block.graph.nodes:
            block.graph.erase_node(item)


def _whole(node: Node) -> Node:
    """What a node is a view of; a piece of a split is one too."""
    while node.op == "call_function" and _shares(node) and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def _shares(node: Node) -> bool:
    return is_view(node) or node.target is operator.getitem


def _place(part: Node, projection: Node) -> int:
    """The feature of the projection [B,M,F] from which on `part` [B,M,n] is a view of it. Raises _Refused."""
    if _whole(part) is not projection:
        raise _Refused(f"`{part.name}` is not a part of the projection")
    view, whole = part.meta["val"], projection.meta["val"]
    at = view.storage_offset() - whole.storage_offset()
    same = view.dim() == whole.dim() and view.shape[:-1] == whole.shape[:-1] and view.stride() == whole.stride()
    if not same or not isinstance(at, int) or at + view.shape[-1] > whole.shape[-1]:
        raise _Refused(f"`{part.name}` is not a slice of the projection's features")
    return at


def _nothing_between(projection: Node, node: Node) -> None:
    """Raises _Refused where anything but a view stands between the two: the op takes the projection's place."""
    item = projection.next
    while item is not node:
        if not launches_nothing(item):
            raise _Refused(f"`{item.name}` stands between")
        item = item.next
