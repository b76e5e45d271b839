"""Drafts that are drawn from a second model's law: a level's draws become one op, the laws of all nodes another.

    stable_topk(log_softmax(logits / t) + noise, k)            ->    draw_children(logits, rng, position, draw, k, t)
    exp(log_softmax(logits / t))                               ->    sampling_probs(logits, t)
    index(pad(cat(laws of levels)), [batch_index, row])        ->    drawn_laws(logits, sums, row, t)

Draws are recognised by comparing the graph with what lowering makes of them; what differs in anything stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.backends.triton.isomorphism import Match
from specc.backends.triton.vocabulary import KERNEL_TYPES
from specc.ir import ops
from specc.ir.build import GraphBuilder, fake, output_values
from specc.ir.clone import clone
from specc.ir.edit import Editor, finish, modules
from specc.ir.prune import prune
from specc.ir.scope import named_arguments
from specc.lower.drafts.children import drawn
from specc.passes.canonicalize import canonicalize
from specc.passes.cse import eliminate_common_subexpressions

ORIGIN = "written-draws"
MOST_DRAWN = 32
"""Children of a node that are drawn by one op at most."""
NAMES = ("child_id", "draft_log_prob", "draft_sums")
aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A law that children were drawn from: its logits, what `draw_children` has of it, and the temperature."""

    logits: Node
    sums: Node
    temperature: float


def written_draws(module: GraphModule) -> GraphModule:
    """A copy of a step graph with ops for draws without replacement and for the laws of a tree's nodes."""
    made = clone(module)
    for block in list(modules(made)):
        laws: dict[Node, _Drawn] = {}
        for node in list(block.graph.nodes):
            if node.target is ops.stable_topk:
                laws |= _draw(block, node)
        for node in list(block.graph.nodes):
            if node.target is aten.index.Tensor:
                _laws(block, node, laws)
    prune(made)
    return finish(made)


def _draw(block: GraphModule, node: Node) -> dict[Node, _Drawn]:
    """Writes the op for the draws that `node` ends; the node that now is their law, if anything reads it."""
    keys, count = node.args
    source = keys
    for target in (aten.add.Tensor, aten.log_softmax.int, aten.div.Scalar):
        if not isinstance(source, Node) or source.target is not target:
            return {}
        temperature, source = source.args[1], source.args[0]
    if not isinstance(source, Node) or not isinstance(count, int) or not isinstance(temperature, float):
        return {}
    if not 0.0 < temperature < float("inf") or count > MOST_DRAWN:
        return {}
    given = source.args[0] if source.target is aten._to_copy.default else source
    for logits in dict.fromkeys((given, source)):
        assert isinstance(logits, Node)
        value = logits.meta["val"]
        for pattern in _patterns(value, temperature, count) if value.dtype in KERNEL_TYPES and value.dim() == 3 else ():
            match = Match()
            if match.same(output_values(pattern)[0].args[0], node):
                return _write(block, node, match, pattern, temperature)
    return {}


def _patterns(logits: torch.Tensor, temperature: float, count: int) -> Iterator[GraphModule]:
    """Draws from logits [B,M,V], as lowering makes them and as passes leave them: ids, log-probabilities, law."""
    b = GraphBuilder(("draft",))
    batch, rows, _ = logits.shape
    counters = [fake((batch,), torch.int64), *(fake((batch, rows), torch.int64) for _ in range(2))]
    x = b.placeholder("logits", fake(tuple(logits.shape), logits.dtype))
    rng, position, draw = (
        b.placeholder(name, value) for name, value in zip(("rng", "position", "draw"), counters, strict=True)
    )
    made = b.output(list(drawn(b, x, temperature, count, (rng, position, draw))))
    yield made
    yield eliminate_common_subexpressions(canonicalize(made))


def _write(
    block: GraphModule, node: Node, match: Match, pattern: GraphModule, temperature: float
) -> dict[Node, _Drawn]:
    """The op and, where it is read, the law, in the place of what the pattern has."""
    index, own, _ = output_values(pattern)
    inputs = {str(item.name): match.pairs[item] for item in pattern.graph.nodes if item.op == "placeholder"}
    log_probs = match.pairs[own.args[0]]
    items = {int(str(user.args[1])): user for user in node.users}
    if any(number != index.args[1] and user.users for number, user in items.items()):
        return {}
    editor = Editor(block, ORIGIN)
    with editor.before(node, node, log_probs):
        counters = (inputs["rng"], inputs["position"], _purposes(editor, inputs["rng"], inputs["draw"]))
        made = editor.call(ops.draw_children, inputs["logits"], *counters, node.args[1], temperature)
        token, log_prob, sums = (editor.item(made, place, name) for place, name in enumerate(NAMES))
    laws: dict[Node, _Drawn] = {}
    for user in list(log_probs.users):
        if user.target is aten.gather.default and user.args[2] in items.values():
            editor.replace(user, log_prob)
        elif user.target is aten.exp.default:
            dtype = user.meta["val"].dtype
            with editor.before(user, user):
                law = editor.call(ops.sampling_probs, inputs["logits"], temperature, 0, 1.0, dtype)
            editor.replace(user, law)
            laws[law] = _Drawn(inputs["logits"], sums, temperature)
    if index.args[1] in items:
        editor.replace(items[index.args[1]], token)
    return laws


def _purposes(editor: Editor, like: Node, draw: Node) -> Node:
    """The purposes of a level as a table where the spec fixes them: one row for all of the batch."""
    if draw.target is aten.add.Tensor and len(draw.args) == 2:
        zero, table = draw.args
        if isinstance(zero, Node) and zero.target is ops.full_rows and isinstance(table, Node):
            given = named_arguments(zero)
            if given["value"] == 0 and table.target is ops.int_table and len(given["shape"]) == 2:
                return editor.call(ops.int_table, like, table.args[1], [1, given["shape"][1]])
    return draw


def _laws(block: GraphModule, node: Node, laws: dict[Node, _Drawn]) -> None:
    """One op for the laws of all nodes, if `node` picks them from levels that were drawn."""
    rows, places = node.args
    if not isinstance(rows, Node) or not isinstance(places, (list, tuple)) or len(places) != 2:
        return
    batch, row = places
    padded = rows.target is aten.constant_pad_nd.default and list(rows.args[1:]) == [[0, 0, 0, 1], 0.0]
    if not padded or not isinstance(batch, Node) or batch.target is not ops.batch_index or not isinstance(row, Node):
        return
    joined: Any = rows.args[0]
    levels = list(joined.args[0]) if joined.target is aten.cat.default and joined.args[1] == 1 else [joined]
    found = [laws.get(level) for level in levels]
    known = [level for level in found if level is not None]
    if len(known) < len(found) or len({level.temperature for level in known}) > 1:
        return
    editor = Editor(block, ORIGIN)
    with editor.before(node, node, rows):
        logits, sums = [level.logits for level in known], [level.sums for level in known]
        editor.replace(node, editor.call(ops.drawn_laws, logits, sums, row, known[0].temperature))
