"""Between two levels of a drawn draft there is one launch: the draw itself.

    embedding(table, tokens of draw_children at fixed places)      ->    draw_embedded(…, table, places)

And the small values that no draw decides (masks, positions, rotations) stand in front of all levels. A region takes
what stands together: these are then computed by a kernel that runs beside the commits anyway.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.backends.triton.launch.core import power_of_two
from specc.backends.triton.ops.drawing import MOST_EMBEDDED
from specc.backends.triton.regions.effects import touched
from specc.backends.triton.regions.table import EMIT
from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.edit import Editor, finish, is_impure, is_loop
from specc.ir.effects import flat_nodes
from specc.ir.prune import prune

ORIGIN = "drawn-levels"
WIDEST = 8192
"""Elements of embeddings that one program moves, at most."""
aten = torch.ops.aten


def drawn_levels(module: GraphModule) -> GraphModule:
    """A copy of a step graph with one launch a level, if it draws; else the graph itself."""
    if not any(node.target is ops.draw_children for node in module.graph.nodes):
        return module
    made = clone(module)
    for node in list(made.graph.nodes):
        if node.target is aten.embedding.default and len(node.args) == 2:
            _embedded(made, node)
    prune(made)
    first = next(node for node in made.graph.nodes if node.op == "call_function")
    for node in list(_early(made)):
        if node is first:
            first = first.next
        else:
            first.prepend(node)
    return finish(made)


def _embedded(module: GraphModule, node: Node) -> None:
    """The draw with its tokens' embedding, if `node` embeds tokens of one draw at fixed places."""
    table, index = node.args
    found = _chosen(index)
    if found is None or not isinstance(table, Node):
        return
    token, draw, place = found
    _, rows, count = token.meta["val"].shape
    wide = power_of_two(count) * power_of_two(int(table.meta["val"].shape[1]))
    if rows * count > MOST_EMBEDDED + 1 or len(place) > MOST_EMBEDDED or len(set(place)) < len(place) or wide > WIDEST:
        return
    editor = Editor(module, ORIGIN)
    with editor.before(draw, draw, node):
        made = editor.call(ops.draw_embedded, *draw.args, table, place)
        items = [editor.item(made, number) for number in range(4)]
    for user in list(draw.users):
        editor.replace(user, items[int(str(user.args[1]))])
    editor.replace(node, items[3])


def _chosen(index: Any) -> tuple[Node, Node, list[int]] | None:
    """(tokens, the draw that they are of, places among all of a batch row), if `index` picks some of them."""
    place: list[int] | None = None
    while isinstance(index, Node) and index.target is aten.index_select.default and index.args[1] == 1:
        listed: Any = index.args[2]
        if listed.target is not ops.int_table or len(listed.args[2]) != 1:
            return None
        values = [int(value) for value in listed.args[1]]
        place = values if place is None else [values[at] for at in place]
        index = index.args[0]
    if place is None or not isinstance(index, Node) or index.target is not aten.flatten.using_ints:
        return None
    token: Any = index.args[0]
    draw = token.args[0] if token.args else None
    if list(index.args[1:]) != [1, 2] or not isinstance(draw, Node) or draw.target is not ops.draw_children:
        return None
    return token, draw, place


def _early(module: GraphModule) -> Iterator[Node]:
    """The small values that depend on inputs alone, in their order."""
    written = {item for node in module.graph.nodes for item in touched(node).writes}
    known = {node for node in module.graph.nodes if node.op == "placeholder"} - written
    for node in module.graph.nodes:
        small = node.target in EMIT or node.target is operator.getitem
        if node.op != "call_function" or not small or is_loop(node) or is_impure(node):
            continue
        if known.issuperset(flat_nodes((node.args, node.kwargs))):
            known.add(node)
            yield node
