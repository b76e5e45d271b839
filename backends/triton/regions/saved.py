"""Copies of small slots for readers that would keep their new values out of a kernel.

    path, count, n' = ...                         path, count, n', old = ...
    commit_rows_(K, path, n, count)      ->       commit_rows_(K, path, old, count)
    n.copy_(n')                                   n.copy_(n')

On the left the write of n has to wait for a reader that needs other results of the kernel which makes n'. On the right
it can be stored there: one launch less for a few bytes more.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from specc.backends.triton.regions.table import WORK
from specc.ir.dims import is_symbolic
from specc.ir.edit import Editor, finish
from specc.ir.effects import flat_nodes

aten = torch.ops.aten
ORIGIN = "save-slots"
SMALL = 64


def saved_reads(module: GraphModule) -> GraphModule:
    """Redirect, in place, readers that no kernel can hold and that come before a write of what they read."""
    place = {node: number for number, node in enumerate(module.graph.nodes)}
    editor = Editor(module, ORIGIN)
    for write in [node for node in place if node.target is aten.copy_.default]:
        slot, value = write.args[:2]
        if not isinstance(slot, Node) or not isinstance(value, Node) or not _is_small(slot):
            continue
        behind = _ancestors(value)
        readers = [node for node in slot.users if _waits(node, behind) and place[node] < place[write]]
        if readers:
            first = min(readers, key=lambda node: place[node])
            with editor.before(first, slot):
                old = editor.call(aten.clone.default, slot, name=f"old_{slot.name}")
            place[old] = place[first]
            for node in readers:
                node.replace_input_with(slot, old)
    return finish(module)


def _is_small(node: Node) -> bool:
    fake = node.meta.get("val")
    if node.op != "placeholder" or not isinstance(fake, torch.Tensor):
        return False
    return all(not is_symbolic(int(size)) for size in fake.shape[1:]) and fake[0].numel() <= SMALL


def _waits(node: Node, behind: frozenset[Node]) -> bool:
    """A reader outside kernels that the new value does not come from, but that shares something with it."""
    if node.target in WORK or node.op != "call_function" or node in behind:
        return False
    return any(item in behind and item.op == "call_function" for item in flat_nodes((node.args, node.kwargs)))


def _ancestors(node: Node) -> frozenset[Node]:
    """The node and all that it depends on."""
    found: set[Node] = set()
    stack = [node]
    while stack:
        item = stack.pop()
        if item not in found:
            found.add(item)
            stack += list(item.all_input_nodes)
    return frozenset(found)
