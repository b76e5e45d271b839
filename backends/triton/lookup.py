"""Prompt lookup's tree, which lowering builds from many small tensors, becomes one op with device functions of its own.

    suffix_matches, latest places, prefixes, owners, room, pack_tree      ->      lookup_tree(history, length, root, …)

It is recognised by comparing the graph with what lowering makes of the drafter that its numbers tell; a graph that
differs in anything keeps its ops.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from specc.backends.triton.isomorphism import Match
from specc.ir import ops
from specc.ir.clone import clone
from specc.ir.dims import BATCH
from specc.ir.edit import Editor, finish, is_loop, loop_parts
from specc.ir.prune import prune
from specc.lower.config import DraftConfig
from specc.lower.drafts.lookup import trie
from specc.lower.step import StepBuilder
from specc.passes.canonicalize import canonicalize
from specc.passes.cse import eliminate_common_subexpressions
from specc.program import Slot

ORIGIN = "written-lookup"
LONGEST_TEXT = 8192
"""Tokens of a text that one program reads."""
MOST_NODES = 64
aten = torch.ops.aten


def written_lookups(module: GraphModule) -> GraphModule:
    """A copy of a step graph with one op for a prompt lookup's tree."""
    made = clone(module)
    for node in [item for item in made.graph.nodes if item.target is ops.pack_tree]:
        history = _text(made, node)
        for pattern, config in _patterns(node, history) if history is not None else ():
            match = Match()
            if match.same(pattern[0], node):
                names = {str(item.name): match.pairs[item] for item in pattern[1]}
                _write(made, node, names, config)
                break
    prune(made)
    return finish(made)


def _write(module: GraphModule, node: Node, names: dict[str, Node], config: DraftConfig) -> None:
    """The op in the place of the tree that `node` packs, of which laws are not read."""
    users = {int(str(user.args[1])): user for user in node.users}
    if any(number > 2 and user.users for number, user in users.items()):
        return
    nodes = node.args[5]
    editor = Editor(module, ORIGIN)
    numbers = (nodes, config.num_steps, config.top_k, config.ngram_min, config.ngram_max)
    with editor.before(node, node):
        made = editor.call(ops.lookup_tree, names["history"], names["length"], names["root_token"], *numbers)
        parts = {number: editor.item(made, number) for number in users if number < 3}
    for number, part in parts.items():
        editor.replace(users[number], part)


def _text(module: GraphModule, node: Node) -> torch.Tensor | None:
    """The type of the text that a tree may come from, if one program can read it and hold the tree."""
    nodes, chosen = node.args[5], node.args[0]
    assert isinstance(nodes, int)
    assert isinstance(chosen, Node)
    for item in module.graph.nodes:
        value = item.meta.get("val")
        is_table = isinstance(value, torch.Tensor) and value.dtype == torch.int64 and value.dim() == 2
        if item.op == "placeholder" and is_table and nodes <= min(value.shape[1], MOST_NODES):
            return value if value.shape[1] <= LONGEST_TEXT else None
    return None


def _patterns(node: Node, history: torch.Tensor) -> Iterator[tuple[tuple[Node, list[Node]], DraftConfig]]:
    """Trees of all sizes that the graph's numbers allow, as lowering makes them and as passes leave them."""
    graph, nodes = node.graph, node.args[5]
    assert isinstance(nodes, int)
    loops = {loop_parts(item).trip for item in graph.nodes if is_loop(item)}
    candidates = int(node.args[0].meta["val"].shape[1])  # type: ignore[union-attr]
    for most in sorted(trip for trip in loops if trip):
        for least in _numbers(graph, aten.ge.Scalar):
            for top_k in _numbers(graph, aten.lt.Scalar):
                config = DraftConfig(
                    method="prompt_lookup",
                    tree="dynamic",
                    num_speculative_tokens=nodes - 1,
                    num_steps=candidates // (nodes - 1),
                    top_k=top_k,
                    ngram_min=least,
                    ngram_max=most,
                )
                made = pattern_of(nodes, config, int(history.shape[1]))
                for graph_of in (made, eliminate_common_subexpressions(canonicalize(made))):
                    inputs = [item for item in graph_of.graph.nodes if item.op == "placeholder"]
                    packed = next(item for item in graph_of.graph.nodes if item.target is ops.pack_tree)
                    yield (packed, inputs), config


def _numbers(graph: torch.fx.Graph, target: object) -> list[int]:
    found = {item.args[1] for item in graph.nodes if item.target is target}
    return sorted(value for value in found if isinstance(value, int) and value > 0)


def pattern_of(nodes: int, config: DraftConfig, capacity: int) -> GraphModule:
    """Lowering's tree from placeholders history [B,capacity], length and root_token [B]."""
    shapes = {"history": (BATCH, capacity), "length": (BATCH,), "root_token": (BATCH,)}
    slots = {name: Slot(name, shape, torch.int64, "committed", "") for name, shape in shapes.items()}
    b = StepBuilder(slots, {}, ("draft",))
    draft = trie(b, nodes, config)
    assert draft.parent is not None
    return b.output([draft.tokens, draft.parent, draft.valid])
