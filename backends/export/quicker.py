"""Keeps PyTorch's ONNX exporter from doing the same work for every step, which is a third of its time. Same models.

It builds the list of all known operators anew for every export, from their sources. And its optimizer tries every rule
at every node, also where the node can't be what the rule is about; where a rule has several outputs it lists all nodes
of the graph each time, so that a model of thousands of nodes takes minutes.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

APIS = "onnxscript._framework_apis.torch_2_11"
MATCHER = "onnxscript.rewriter._matcher"
BASICS = "onnxscript.rewriter._basics"


@cache
def quicker() -> None:
    """Once per process. Does nothing for versions that are built otherwise."""
    try:
        apis: Any = importlib.import_module(APIS)
        matcher: Any = importlib.import_module(MATCHER)
        basics: Any = importlib.import_module(BASICS)
        apis.get_torchlib_ops = cache(apis.get_torchlib_ops)
        _only_where_it_can_be(matcher.SimplePatternMatcher, basics.MatchResult)
    except (ImportError, AttributeError):
        return


def _only_where_it_can_be(kind: Any, result: Any) -> None:
    """A pattern is tried where the node is the operator that its (first) output has to come from."""
    plain = kind.match

    def match(self: Any, model: Any, graph: Any, node: Any, **options: Any) -> Any:
        wanted = self.pattern.output_nodes[0].op_identifier()
        if wanted is not None and wanted[:2] != (node.domain, node.op_type):
            return result().fail("No match found.")
        return plain(self, model, graph, node, **options)

    kind.match = match
