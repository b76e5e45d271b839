"""A convolution whose new window goes into the old one's memory moves it itself: one launch instead of two.

    y, after = short_conv(window, x, …); copy_(window, after)      ->      y = short_conv_(window, x, …)

Found in the graphs when code is generated, since only this backend has a kernel that does both.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.edit import Editor, finish, modules
from specc.ir.prune import prune
from specc.ir.scope import named_arguments

ORIGIN = "moved-windows"
aten = torch.ops.aten


def moved_windows(module: GraphModule) -> GraphModule:
    """A copy of a step graph in which convolutions move their windows where nothing can tell the difference."""
    made = clone(module)
    for block in list(modules(made)):
        for node in list(block.graph.nodes):
            copied = _copied_back(node) if node.target is ops.short_conv else None
            if copied is not None:
                _replace(block, node, copied)
    prune(made)
    return finish(made)


def _copied_back(node: Node) -> Node | None:
    """The copy of the new window into the old one, if that is all that is done with both."""
    window = node.args[0]
    after = [user for user in node.users if user.target is operator.getitem and user.args[1] == 1]
    if not isinstance(window, Node) or len(after) != 1 or len(after[0].users) != 1:
        return None
    copied = next(iter(after[0].users))
    if copied.target is not aten.copy_.default or copied.args[0] is not window or copied.users:
        return None
    order = {item: place for place, item in enumerate(node.graph.nodes)}
    # A read between the two would see the new window too early.
    between = [user for user in window.users if order[node] < order[user] < order[copied]]
    return None if between else copied


def _replace(block: GraphModule, node: Node, copied: Node) -> None:
    arguments: dict[str, Any] = named_arguments(node)
    names = ("window", "x", "weight", "bias", "live")
    editor = Editor(block, ORIGIN)
    with editor.before(node, node, copied):
        made = editor.call(ops.short_conv_, *(arguments.get(name) for name in names), name="convolved")
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] == 0:
            user.replace_all_uses_with(made)
            block.graph.erase_node(user)
    block.graph.erase_node(copied)
