"""Layer loops over one cache become one, so that all that reads or writes a layer's cache stands in one body."""

from __future__ import annotations

import operator
from typing import Any

from torch.fx import GraphModule, Node

from specc.ir.build import output_node
from specc.ir.clone import clone
from specc.ir.edit import Editor, LoopParts, loop_parts, make_loop
from specc.passes.legalize_ascend.common import NAME, Refused, aten, hoist, needed_before


def merge(module: GraphModule, first_node: Node, second_node: Node) -> None:
    """One loop at the first one's place that does both bodies in turn: first's results are read there directly.

    The second may read results of the first only as slices (iteration i reads what iteration i made). Raises Refused,
    with the module as it was, where another operand of the second depends on the first.
    """
    first, second = loop_parts(first_node), loop_parts(second_node)
    if (first.axis, first.trip) != (second.axis, second.trip):
        raise Refused(f"the loops `{first_node.name}` and `{second_node.name}` differ in axis or trips")
    own = {item: number for number, items in first.results().items() for item in items}
    count = len(first.carried)
    wanted = [item for item in second.operands if not (item in second.sliced and own.get(item, -1) >= count)]
    needed_before(module, wanted, first_node)
    hoist(module, wanted, first_node)
    body, fresh = _joined(first, second, {item: own[item] - count for item in second.sliced if item in own})
    carried, sliced, invariant = (
        [*own_operands, *(item for group, item in fresh if group == kind)]
        for kind, own_operands in (("carried", first.carried), ("sliced", first.sliced), ("invariant", first.invariant))
    )
    editor = Editor(module, NAME)
    with editor.before(first_node, first_node, second_node):
        results = make_loop(editor, first, body=body, carried=carried, sliced=sliced, invariant=invariant)
    _hand_out(first, second, results)
    for node in (second_node, first_node):
        for user in list(node.users):
            if not user.users:
                module.graph.erase_node(user)
        module.graph.erase_node(node)


def _joined(first: LoopParts, second: LoopParts, shared: dict[Node, int]) -> tuple[GraphModule, list[tuple[str, Any]]]:
    """The first's body followed by the second's, and the operands that it takes more, by kind."""
    body = clone(first.body)
    inside = [node for node in body.graph.nodes if node.op == "placeholder"]
    output = output_node(body)
    own: Any = output.args[0]
    count = len(first.carried)
    mapping: dict[Node, Any] = {second.index: inside[0]}
    known = {
        ("sliced" if place < count + len(first.sliced) else "invariant", operand): inside[1 + place]
        for place, operand in enumerate(first.operands)
        if place >= count
    }
    fresh: list[tuple[str, Any]] = []
    lasts = {
        "carried": inside[count],
        "sliced": inside[count + len(first.sliced)],
        "invariant": inside[-1],
    }
    editor = Editor(body, NAME)
    groups = (("carried", second.carried, second.carried_inside), ("sliced", second.sliced, second.sliced_inside))
    for kind, operands, places in (*groups, ("invariant", second.invariant, second.invariant_inside)):
        for operand, place in zip(operands, places, strict=True):
            if kind == "sliced" and operand in shared:
                mapping[place] = own[count + shared[operand]]
            elif (kind, operand) in known:
                mapping[place] = known[(kind, operand)]
            else:
                mapping[place] = _placeholder(editor, body, lasts, kind, place)
                fresh.append((kind, operand))
                if kind != "carried":
                    known[(kind, operand)] = mapping[place]
    with editor.before(output):
        for node in second.body.graph.nodes:
            if node.op == "get_attr":
                inner = second.body.get_submodule(str(node.target))
                assert isinstance(inner, GraphModule)
                mapping[node] = editor.body(clone(inner), str(node.target))
            elif node.op not in ("placeholder", "output"):
                mapping[node] = body.graph.node_copy(node, lambda item: mapping[item])
                mapping[node].meta["passes"] = (*node.meta.get("passes", ()), NAME)
    carried = [mapping.get(item, item) for item in second.carried_out]
    stacked = [mapping.get(item, item) for item in second.stacked_out]
    output.args = ((*own[:count], *carried, *own[count:], *stacked),)
    output.meta["val"] = tuple(item.meta["val"] for item in output.args[0])  # type: ignore[union-attr]
    return body, fresh


def _placeholder(editor: Editor, body: GraphModule, lasts: dict[str, Node], kind: str, like: Node) -> Node:
    """A new placeholder at the end of its kind."""
    taken = {node.name for node in body.graph.nodes}
    name = like.name
    while name in taken:
        name += "_b"
    with body.graph.inserting_after(lasts[kind]):
        made = body.graph.placeholder(name)
    made.target = made.name
    made.meta |= {key: like.meta[key] for key in ("val", "keys", "passes") if key in like.meta}
    order = ("carried", "sliced", "invariant")
    previous = lasts[kind]
    for later in order[order.index(kind) :]:
        if lasts[later] is previous:
            lasts[later] = made
    return made


def _hand_out(first: LoopParts, second: LoopParts, results: list[Node]) -> None:
    """The readers of both loops' results read those of the joined loop: carried of both, then stacked of both."""
    one, two = len(first.carried), len(second.carried)
    stacked = len(first.stacked_out)
    for number, items in first.results().items():
        place = number if number < one else number + two
        for item in items:
            item.replace_all_uses_with(results[place])
    for number, items in second.results().items():
        place = one + number if number < two else one + stacked + number
        for item in items:
            item.replace_all_uses_with(results[place])


def inline_single(module: GraphModule, node: Node) -> None:
    """A layer loop of one iteration, written out: slices become select(…, 0, 0), stacked results unsqueeze(…, 0)."""
    parts = loop_parts(node)
    editor = Editor(module, NAME)
    mapping: dict[Node, Any] = {parts.index: 0}
    with editor.before(node):
        for operand, place in zip(parts.operands, parts.inside, strict=True):
            mapping[place] = operand
            if place in parts.sliced_inside:
                mapping[place] = first_of(editor, operand)
        for item in parts.body.graph.nodes:
            if item.op == "get_attr":
                inner = parts.body.get_submodule(str(item.target))
                assert isinstance(inner, GraphModule)
                mapping[item] = editor.body(clone(inner), str(item.target))
            elif item.op not in ("placeholder", "output"):
                mapping[item] = module.graph.node_copy(item, lambda old: mapping[old])
        results = [mapping.get(item, item) for item in parts.carried_out]
        results += [editor.call(aten.unsqueeze.default, mapping.get(item, item), 0) for item in parts.stacked_out]
    for number, items in parts.results().items():
        for item in items:
            for user in list(item.users):
                if user.target is aten.select.int and user.args[1:] == (0, 0) and number >= len(parts.carried):
                    inner_value = results[number].args[0]
                    assert isinstance(inner_value, Node)
                    user.replace_all_uses_with(inner_value)
                    module.graph.erase_node(user)
            item.replace_all_uses_with(results[number])
            module.graph.erase_node(item)
    module.graph.erase_node(node)


def first_of(editor: Editor, operand: Any) -> Node:
    """The first layer of a stacked operand; what an unsqueeze stacked is that itself."""
    if isinstance(operand.meta["val"], (tuple, list)):
        return editor.item(operand, 0)
    if operand.target is aten.unsqueeze.default and operand.args[1] == 0:
        inner: Node = operand.args[0]
        return inner
    return editor.call(aten.select.int, operand, 0, 0)


def one_select(module: GraphModule, caches: list[Node]) -> None:
    """One select(cache, 0, 0) of each of these placeholders, in front of everything that computes."""
    first = next(node for node in module.graph.nodes if node.op != "placeholder")
    for cache in caches:
        found = [user for user in cache.users if user.target is aten.select.int and user.args[1:] == (0, 0)]
        if found:
            with module.graph.inserting_before(first):
                made = module.graph.node_copy(found[0])
            for user in found:
                user.replace_all_uses_with(made)
                module.graph.erase_node(user)


def stacked_value(parts: LoopParts, item: Node) -> Any:
    """What the body returns for a `getitem` of the loop."""
    number: Any = item.args[1]
    values = (*parts.carried_out, *parts.stacked_out)
    return values[number]


def is_result(node: Any, loop: Node) -> bool:
    """True for `loop[number]`."""
    return isinstance(node, Node) and node.target is operator.getitem and node.args[0] is loop
