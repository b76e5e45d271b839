"""Work over a vocabulary that has a kernel as a whole is found in the graphs: best log-probabilities, rejection walks.

    stable_topk(clamp_max(log_softmax(logits), 0), k)               ->    topk_log_probs(logits, k)
    sampling_probs, the walk of `specc.lower.accept`, the bonus     ->    reject_tree(logits or law, q_law, tokens, …)

A walk is recognised by comparing the graph with what lowering makes of the rule, as it is and after the passes that
normalise graphs; a graph that differs in anything keeps its loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.backends.triton.isomorphism import Match
from specc.ir import ops
from specc.ir.build import output_values
from specc.ir.clone import clone
from specc.ir.dims import BATCH
from specc.ir.edit import Editor, finish, is_loop, loop_parts, modules
from specc.ir.prune import prune
from specc.ir.scope import named_arguments
from specc.lower.accept import walk
from specc.lower.accept_rules import make_rule
from specc.lower.config import AcceptConfig
from specc.lower.step import StepBuilder
from specc.passes.canonicalize import canonicalize
from specc.passes.cse import eliminate_common_subexpressions
from specc.program import Slot

ORIGIN = "vocabulary-kernels"
KERNEL_TYPES = (torch.float32, torch.bfloat16, torch.float16)
aten = torch.ops.aten


def vocabulary_kernels(module: GraphModule) -> GraphModule:
    """A copy of a step graph with ops that have a kernel in place of what they consist of."""
    made = clone(module)
    for block in list(modules(made)):
        for node in list(block.graph.nodes):
            if node.target is ops.stable_topk:
                _best_log_probs(block, node)
    for node in [item for item in made.graph.nodes if is_loop(item)]:
        _rejection(made, node)
    prune(made)
    return finish(made)


def _best_log_probs(block: GraphModule, node: Node) -> None:
    """min(log_softmax, 0) in float32, whatever the logits' dtype was before."""
    clamped, k = node.args
    if not isinstance(clamped, Node) or clamped.target is not aten.clamp_max.default or clamped.args[1] != 0.0:
        return
    law = clamped.args[0]
    if not isinstance(law, Node) or law.target is not aten.log_softmax.int or law.kwargs or len(law.args) != 2:
        return
    logits: Any = law.args[0]
    value = logits.meta["val"]
    if law.args[1] not in (-1, value.dim() - 1) or value.dtype != torch.float32:
        return
    source = logits.args[0] if logits.target is aten._to_copy.default else logits
    if source.meta["val"].dtype not in KERNEL_TYPES:
        source = logits
    editor = Editor(block, ORIGIN)
    with editor.before(node, law, clamped):
        editor.replace(node, editor.call(ops.topk_log_probs, source, k))


def _rejection(module: GraphModule, node: Node) -> None:
    """The walk of the loop `node`, if it is one."""
    laws = [item for item in module.graph.nodes if item.target is ops.sampling_probs]
    if node.args[0] != "token" or len(laws) != 1:
        return
    given = named_arguments(laws[0])
    value = given["logits"].meta["val"]
    longest = [item.shape[1] for item in _carried(node) if item.dim() == 2 and item.dtype == torch.int64]
    if value.dtype not in KERNEL_TYPES or value.dim() != 3 or len(longest) != 1:
        return
    for pattern in _patterns(given, value, longest[0]):
        if _replaced(module, node, laws[0], pattern, longest[0]):
            return


def _carried(node: Node) -> list[torch.Tensor]:
    return [item.meta["val"] for item in loop_parts(node).carried if isinstance(item, Node)]


def _patterns(given: dict[str, Any], value: torch.Tensor, longest: int) -> Iterator[GraphModule]:
    """Walks with that law: both rules, trees and chains, as lowering makes them and as passes leave them."""
    for rule in ("true_q", "target_only"):
        for chain in (False, True):
            config = AcceptConfig(
                method="rejection",
                rule="true_q" if rule == "true_q" else "target_only",
                temperature=given["temperature"],
                top_k=given["top_k"],
                top_p=given["top_p"],
            )
            made = walk_pattern(config, value, longest, chain)
            yield made
            yield eliminate_common_subexpressions(canonicalize(made))


def walk_pattern(config: AcceptConfig, logits: torch.Tensor, longest: int, chain: bool) -> GraphModule:
    """Lowering's walk for logits [B,N,V]: (current, path, count, bonus) from placeholders of the inputs' names."""
    nodes = logits.shape[1]
    slots = {name: Slot(name, (BATCH,), torch.int64, "committed", "") for name in ("rng", "length")}
    b = StepBuilder(slots, {}, ("accept",))
    inputs = {name: b.input(name, (BATCH, nodes), torch.int64) for name in ("tokens", *(() if chain else ("parent",)))}
    inputs["valid"] = b.input("valid", (BATCH, nodes), torch.bool)
    inputs["logits"] = b.input("logits", tuple(logits.shape), logits.dtype)
    if config.uses_draft_law:
        inputs["q_probs"] = b.input("q_probs", tuple(logits.shape), torch.float32)
    rule = make_rule(b, config, inputs)
    current, path, count = walk(b, inputs, rule, nodes, longest)
    return b.output([current, path, count, rule.bonus(b, current, count)])


def _replaced(module: GraphModule, node: Node, law: Node, pattern: GraphModule, longest: int) -> bool:
    """Puts one op in the place of a walk that equals the pattern."""
    current, path, count, bonus = output_values(pattern)
    for end in [item for item in module.graph.nodes if item.target is bonus.target]:
        match = Match()
        if not match.same(bonus, end) or current not in match.pairs or count not in match.pairs:
            continue
        own = path.args[0]
        if match.partner(own).node is not node:
            continue
        taken = {loop_parts(node).carried_inside.index(match.pairs[item]) for item in _paired(match, own)}
        place = next((number for number in range(len(loop_parts(node).carried)) if number not in taken), None)
        if place is None or not match.carried(own, path.args[1], place):
            continue
        _write(module, node, law, pattern, match, {1: (path.args[1], place)}, end, longest)
        return True
    return False


def _paired(match: Match, loop: Node) -> list[Node]:
    """The pattern's carried values that have a partner."""
    return [item for item in loop_parts(loop).carried_inside if item in match.pairs]


def _write(
    module: GraphModule,
    node: Node,
    law: Node,
    pattern: GraphModule,
    match: Match,
    path: dict[int, tuple[int, int]],
    end: Node,
    longest: int,
) -> None:
    """The op in front of the loop, and its results in the place of the loop's and of `end`."""
    inputs = {str(item.name): match.pairs[item] for item in pattern.graph.nodes if item in match.pairs}
    given = named_arguments(law)
    soft = given["top_p"] >= 1.0
    editor = Editor(module, ORIGIN)
    with editor.before(node, law, end):
        walked = editor.call(
            ops.reject_tree,
            given["logits"] if soft else law,
            inputs.get("q_probs"),
            inputs["tokens"],
            inputs.get("parent"),
            inputs["valid"],
            inputs["rng"],
            inputs["length"],
            longest,
            given["temperature"] if soft else 0.0,
            given["top_k"] if soft else 0,
        )
        items = [editor.item(walked, number) for number in range(4)]
    current, _, count, _ = output_values(pattern)
    found = {path[1][1]: items[0], match.pairs[count].args[1]: items[1], match.pairs[current].args[1]: items[2]}
    for number, users in loop_parts(node).results().items():
        for user in users if number in found else ():
            editor.replace(user, found[number])
    editor.replace(end, items[3])
