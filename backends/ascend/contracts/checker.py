"""check_contracts: every contract of the Ascend operators, on a program or on any FX graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch._ops import OpOverloadPacket
from torch.fx import GraphModule, Node

from specc.backends.ascend.contracts.attention import check_attention
from specc.backends.ascend.contracts.caches import check_in_place, check_scatter, is_dense_part
from specc.backends.ascend.contracts.calls import npu_calls
from specc.backends.ascend.contracts.context import Context, Facts, Meaning, Stage
from specc.backends.ascend.contracts.converters import check_converters
from specc.backends.ascend.contracts.delta import check_delta, check_products
from specc.backends.ascend.contracts.host import check_host
from specc.backends.ascend.contracts.indices import check_indices, check_writes
from specc.backends.ascend.contracts.lengths import check_lengths
from specc.backends.ascend.contracts.masks import check_masks
from specc.backends.ascend.ops.table import POINTWISE, special
from specc.diagnostics import Diagnostic, Span, in_source_order
from specc.ir.clone import clone
from specc.ir.ranges import Declared, analyse
from specc.passes.rewrite_negative_indices.diagnose import untyped
from specc.passes.rewrite_negative_indices.types import record_types
from specc.program import DecodeProgram

CALL_CHECKS = (check_masks, check_attention, check_lengths, check_scatter, check_delta)
"""One per family of ops; each is called with every NPU call. Masks come first: what is wrong with one implies more."""
GRAPH_CHECKS = (check_in_place, check_products, check_indices, check_writes, check_converters, check_host)
"""Contracts between nodes, and of ops that are not the NPU's own."""
PREFILL = "prefill"


def check_contracts(
    item: DecodeProgram | GraphModule,
    spans: Mapping[str, Span] | None = None,
    *,
    ranges: Declared | None = None,
    masks: Mapping[str, Meaning] | None = None,
    unique: Collection[str] = (),
    stage: Stage = "decode",
    example_inputs: Sequence[object] | None = None,
) -> list[Diagnostic]:
    """Everything that an NPU would refuse, read wrongly or leave undefined; empty where nothing is.

    `item` is a program, or any graph: of `torch.export` (`exported.module()`), make_fx or symbolic_trace (that one has
    no shapes and needs `example_inputs`); its NPU ops may be `specc.npu_*`, `torch.ops.npu.*` or `torch.ops.air.*`.
    `spans` maps spec keys to places in the YAML. What a graph can't show is declared: `ranges` of integer inputs,
    `masks` (name of a node -> whether its ones mean "hidden" or "visible"), and `unique`, the inputs without repeated
    rows. `stage` says whether a bare graph is a
    decode round (at most 16 rows) or a prefill; a program's prefill graph is known by its name.
    """
    if isinstance(item, DecodeProgram):
        facts = Facts(masks or {}, frozenset(unique), printed, item.attributes)
        declared = {**item.ranges, **(ranges or {})}
        found: list[Diagnostic] = []
        for name, graph in item.graphs.items():
            which: Stage = "prefill" if name == PREFILL else "decode"
            context = Context(name, graph, analyse(graph, declared), facts, which, spans or {}, is_program=True)
            found += _checked(context)
        return in_source_order(found)
    typed = _normalised(clone(item))
    missing = record_types(typed, example_inputs)
    if missing:
        return [untyped(missing)]
    facts = Facts(masks or {}, frozenset(unique))
    context = Context("main", typed, analyse(typed, ranges), facts, stage, spans or {})
    return in_source_order(_checked(context))


def _normalised(module: GraphModule) -> GraphModule:
    """Overloads in place of packets (`torch.ops.npu.x`), and nothing that only blurs what is known of values.

    That is submodules whose results nobody takes (torch.export leaves one behind that looks at its inputs' sizes), and
    copies into whole inputs at the end: they are results, and no node reads what they write.
    """
    later: set[Node] = set()
    for node in reversed(list(module.graph.nodes)):
        if node.op == "call_module" and not node.users:
            module.graph.erase_node(node)
            continue
        if node.target is torch.ops.aten.copy_.default and _only_returned(node, later):
            node.replace_all_uses_with(node.args[1])
            module.graph.erase_node(node)
            continue
        if node.op != "output":
            later.update(node.all_input_nodes)
        if node.op == "call_function" and isinstance(node.target, OpOverloadPacket):
            node.target = getattr(node.target, node.target.overloads()[0])
    return module


def _only_returned(copy: Node, later: set[Node]) -> bool:
    """A copy of a computed value into an input that nobody reads afterwards."""
    target, source = copy.args[0], copy.args[1]
    if not isinstance(target, Node) or target.op != "placeholder" or not isinstance(source, Node):
        return False
    return target not in later and not is_dense_part(source, target) and not (set(copy.users) & later)


def printed(node: Node) -> bool:
    """Whether the backend writes an aten node of a program in other ops."""
    return node.target in POINTWISE or special(node) is not None


def _checked(context: Context) -> list[Diagnostic]:
    """All findings in one graph, in program order as far as one check goes."""
    for call in npu_calls(context.module):
        for check in CALL_CHECKS:
            check(call, context)
    for whole in GRAPH_CHECKS:
        whole(context)
    return list(context.found.values())
