"""Fusing a producing loop into the loop that consumes its slices: iteration i of both becomes one iteration.

s = loop a over X { y = f(x) }; r = loop a over s, Z { g(y, z) }   ->   r, s = loop a over X, Z { y = f(x); g(y, z) }
"""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, GraphModule, Node

from specc.ir.clone import clone
from specc.ir.edit import Editor, LoopParts, loop_parts, make_loop


def _first_compute(graph: Graph) -> Node:
    return next(node for node in graph.nodes if node.op != "placeholder")


def _consumed(producer: LoopParts, consumer: LoopParts) -> dict[int, int] | str:
    """Producer result number -> position among the consumer's sliced operands, or why they can't be fused."""
    if producer.carried:
        return "the producing loop carries values from one iteration to the next"
    if producer.axis != consumer.axis or producer.trip != consumer.trip:
        return f"the loops differ: {producer.axis} x {producer.trip} and {consumer.axis} x {consumer.trip}"
    wanted: dict[int, int] = {}
    for number, readers in producer.results().items():
        for reader in readers:
            if reader in consumer.carried or reader in consumer.invariant:
                return f"the consuming loop reads all of `{reader.name}` in every iteration"
            if reader in consumer.sliced:
                wanted[number] = consumer.sliced.index(reader)
    return wanted or "the consuming loop reads no slice of the producing loop's results"


def _read_elsewhere(producer: LoopParts, consumer: LoopParts) -> list[int]:
    """The producer's results that something besides the consumer reads."""
    return sorted(
        number
        for number, readers in producer.results().items()
        if any(user is not consumer.node for reader in readers for user in reader.users)
    )


def _early_use(producer: LoopParts, consumer: LoopParts) -> Node | None:
    """A reader of the producer's results, other than the consumer, that stands before the consumer."""
    order = {node: number for number, node in enumerate(producer.node.graph.nodes)}
    for readers in producer.results().values():
        for reader in readers:
            for user in reader.users:
                if user is not consumer.node and order[user] < order[consumer.node]:
                    return user
    return None


def _free_name(graph: Graph, wanted: str) -> str:
    """`wanted`, or with a number where a node has that name (a placeholder's target is a parameter's name)."""
    taken = {node.name for node in graph.nodes}
    names = (wanted, *(f"{wanted}_{number}" for number in range(1, len(taken) + 2)))
    return next(name for name in names if name not in taken)


def _inline(body: GraphModule, producer: LoopParts, origin: str) -> tuple[list[Node], list[Node], list[Node]]:
    """The producer's body copied in front of `body`'s first computation.

    Returns the new slice and invariant placeholders (for the producer's operands) and the values of its results.
    """
    editor = Editor(body, origin)
    own = loop_index = next(iter(body.graph.nodes))
    mapping: dict[Node, Node] = {producer.index: loop_index}
    first = _first_compute(body.graph)
    made: dict[Node, Node] = {}
    for outside, inside in zip(producer.operands, producer.inside, strict=True):
        if outside not in made:
            with editor.before(first, inside):
                made[outside] = editor.placeholder(_free_name(body.graph, inside.name), inside.meta["val"])
        mapping[inside] = made[outside]
    with editor.before(first, own):
        for node in producer.body.graph.nodes:
            if node.op == "placeholder" or node.op == "output":
                continue
            if node.op == "get_attr":
                inner = producer.body.get_submodule(str(node.target))
                assert isinstance(inner, GraphModule)
                mapping[node] = editor.body(clone(inner), str(node.target))
                continue
            mapping[node] = body.graph.node_copy(node, lambda item: mapping[item])
            mapping[node].meta["passes"] = (*node.meta.get("passes", ()), origin)
    sliced = [made[item] for item in producer.sliced]
    invariant = [made[item] for item in dict.fromkeys(producer.invariant)]
    return sliced, invariant, [mapping[value] for value in producer.stacked_out]


def fuse_loops(module: GraphModule, producer_node: Node, consumer_node: Node, origin: str) -> str | None:
    """Fuse `producer_node` into `consumer_node` (both loops of `module`'s graph, edited in place).

    Returns None when done, or the reason why it is not legal. Those of the producer's results that something else reads
    too become further stacked results of the fused loop.
    """
    producer, consumer = loop_parts(producer_node), loop_parts(consumer_node)
    wanted = _consumed(producer, consumer)
    if isinstance(wanted, str):
        return wanted
    early = _early_use(producer, consumer)
    if early is not None:
        return f"`{early.name}` reads the producing loop's result before the consuming loop runs"
    body = clone(consumer.body)
    inside = [node for node in body.graph.nodes if node.op == "placeholder"][1:]
    new_sliced, new_invariant, values = _inline(body, producer, origin)
    offset = len(consumer.carried)
    dropped = set(wanted.values())
    for number, position in wanted.items():
        inside[offset + position].replace_all_uses_with(values[number])
    keep = [position for position in range(len(consumer.sliced)) if position not in dropped]
    first_invariant = offset + len(consumer.sliced)
    order = [
        *inside[:offset],
        *(inside[offset + position] for position in keep),
        *new_sliced,
        *inside[first_invariant:],
        *new_invariant,
    ]
    for position in dropped:
        body.graph.erase_node(inside[offset + position])
    _order_placeholders(body.graph, order)
    read = _read_elsewhere(producer, consumer)
    _extend_output(body.graph, [values[number] for number in read])
    operands: dict[str, list[Any]] = {
        "sliced": [*(consumer.sliced[position] for position in keep), *producer.sliced],
        "invariant": [*consumer.invariant, *dict.fromkeys(producer.invariant)],
    }
    _rebuild(module, (producer, consumer), body, operands, read, origin)
    return None


def _order_placeholders(graph: Graph, order: list[Node]) -> None:
    previous = next(iter(graph.nodes))
    for node in order:
        previous.append(node)
        previous = node


def _extend_output(graph: Graph, values: list[Node]) -> None:
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    results: Any = output.args[0]
    output.args = ((*results, *values),)
    output.meta["val"] = (*output.meta["val"], *(value.meta["val"] for value in values))


def _rebuild(
    module: GraphModule,
    loops: tuple[LoopParts, LoopParts],
    body: GraphModule,
    operands: dict[str, list[Any]],
    read: list[int],
    origin: str,
) -> None:
    """Place the fused loop and hand its results to the readers of both loops."""
    producer, consumer = loops
    editor = Editor(module, origin)
    with editor.before(consumer.node, consumer.node, producer.node):
        results = make_loop(editor, consumer, body=body, sliced=operands["sliced"], invariant=operands["invariant"])
    before = len(consumer.carried_out) + len(consumer.stacked_out)
    for number, readers in consumer.results().items():
        for reader in readers:
            editor.replace(reader, results[number])
    for number, readers in producer.results().items():
        for reader in readers:
            users = [user for user in reader.users if user is not consumer.node]
            for user in users:
                user.replace_input_with(reader, results[before + read.index(number)])
    module.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    module.delete_all_unused_submodules()
