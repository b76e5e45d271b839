"""Which nodes of a step graph each statement of a generated function comes from.

Recorded only where `ModuleInfo.origins` asks for it, beside the text, which does not depend on it. A node has the
statements that were printed for it; one that is written inside others' expressions, or is only a name for what another
made, has those of its users.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch.fx import GraphModule, Node

from specc.backends.printing.liveness import loop_body
from specc.ir.loop import loop


@dataclass(slots=True)
class StepOrigins:
    """One step: the graph as it was printed, and per statement of the function (the docstring apart) its nodes."""

    graph: GraphModule
    statements: dict[int, list[Node]] = field(default_factory=dict)
    count: int = 0

    def statement(self, number: int, nodes: Iterable[Node]) -> None:
        """Statement `number` was printed for these nodes."""
        self.statements.setdefault(number, []).extend(nodes)
        self.count = max(self.count, number + 1)

    def by_node(self) -> dict[Node, list[int]]:
        """Node -> the numbers of its statements, in order; nodes that nothing printed needs are left out."""
        own: dict[Node, set[int]] = {}
        for number, nodes in self.statements.items():
            for node in nodes:
                own.setdefault(node, set()).add(number)
        found = dict(own)

        def places(node: Node) -> set[int]:
            if node not in found:
                found[node] = set()  # of the node itself, while it is looked for
                found[node] = {place for user in node.users for place in places(user)}
            return found[node]

        def visit(graph: GraphModule, around: set[int]) -> None:
            for node in graph.graph.nodes:
                if not places(node) and node.users:
                    found[node] = set(around)  # in a loop that was printed as one call
                if node.target is loop:
                    visit(loop_body(graph, node), found[node])

        visit(self.graph, set())
        return {node: sorted(numbers) for node, numbers in found.items() if numbers}


@dataclass(slots=True)
class Origins:
    """Filled by the generation of a module: step name -> its statements."""

    steps: dict[str, StepOrigins] = field(default_factory=dict)

    def begin(self, step: str, graph: GraphModule) -> StepOrigins:
        """A step whose function is about to be printed."""
        self.steps[step] = StepOrigins(graph)
        return self.steps[step]


def statement_lines(source: str) -> dict[str, list[tuple[int, int]]]:
    """Step -> first and last line (1-based) of every statement of `run_<step>` in order; of a `for` those of its head.

    Without the docstring, these are the printer's statements, however they were broken into lines afterwards.
    """
    return {
        item.name.removeprefix("run_"): list(_lines(item.body[1:]))
        for item in ast.parse(source).body
        if isinstance(item, ast.FunctionDef) and item.name.startswith("run_")
    }


def _lines(body: Iterable[ast.stmt]) -> Iterable[tuple[int, int]]:
    for statement in body:
        if isinstance(statement, ast.For):
            yield statement.lineno, statement.body[0].lineno - 1
            yield from _lines(statement.body)
        else:
            assert statement.end_lineno is not None
            yield statement.lineno, statement.end_lineno


def lines_of_nodes(source: str, origins: Origins) -> Mapping[str, dict[Node, list[tuple[int, int]]]]:
    """Step -> node -> lines of the module's source (first, last). A step that was edited afterwards has none."""
    found: dict[str, dict[Node, list[tuple[int, int]]]] = {}
    statements = statement_lines(source)
    for step, origin in origins.steps.items():
        lines = statements.get(step, [])
        fits = len(lines) == origin.count
        by_node = origin.by_node() if fits else {}
        found[step] = {node: [lines[number] for number in numbers] for node, numbers in by_node.items()}
    return found
