"""Which statement of a generated module comes from which node: asked for beside the text, which stays the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.fx import GraphModule, Node

from specc.backends.printing.expression import Expr
from specc.backends.printing.liveness import output_node
from specc.backends.printing.names import Names
from specc.backends.printing.naming import wanted_name
from specc.backends.printing.origins import Origins, StepOrigins, lines_of_nodes, statement_lines
from specc.backends.printing.printer import GraphPrinter
from specc.backends.reference.backend import DIALECT
from specc.driver import backend_of, lower_spec, module_info, run_passes
from specc.ir.build import GraphBuilder, fake
from specc.ir.loop import loop
from specc.spec import load

ROOT = Path(__file__).resolve().parents[2]
SPECS = ("smollm2-plain", "gdn-15m-tree", "smollm2-dynamic-tree")
CALLS = {
    torch.ops.aten.linear.default: "F.linear(",
    torch.ops.aten.embedding.default: "F.embedding(",
    torch.ops.aten.rms_norm.default: "F.rms_norm(",
    torch.ops.aten.argmax.default: ".argmax(",
}


@cache
def generated(name: str) -> tuple[str, str, Origins]:
    """The module printed without and with origins."""
    loaded = load(ROOT / "specs" / f"{name}.yaml")
    program = run_passes(loaded, lower_spec(loaded), verify=False).program
    info, origins = module_info(loaded), Origins()
    backend = backend_of("reference")
    return backend.generate(program, info), backend.generate(program, replace(info, origins=origins)), origins


def nodes_of(origin: StepOrigins) -> list[Node]:
    """The calls of a step and of its loops' bodies."""
    graphs = [item for item in origin.graph.modules() if isinstance(item, GraphModule)]
    return [node for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("name", SPECS)
def test_asking_for_origins_changes_no_text(name: str) -> None:
    plain, traced, origins = generated(name)
    assert plain == traced
    assert {f"def run_{step}(" in plain for step in origins.steps} == {True}


@pytest.mark.parametrize("name", SPECS)
def test_every_statement_and_every_node_is_accounted_for(name: str) -> None:
    _, source, origins = generated(name)
    lines_of, statements = lines_of_nodes(source, origins), statement_lines(source)
    for step, origin in origins.steps.items():
        assert len(statements[step]) == origin.count
        assert [node.name for node in nodes_of(origin) if node not in lines_of[step]] == []


@pytest.mark.parametrize("name", SPECS)
def test_a_nodes_lines_hold_its_call(name: str) -> None:
    """Both ways: each such node leads to lines that call it, and each line that calls it is some such node's."""
    _, source, origins = generated(name)
    text = source.split("\n")
    lines_of, statements, seen = lines_of_nodes(source, origins), statement_lines(source), 0
    for step, origin in origins.steps.items():
        calls = {call: set[int]() for call in CALLS.values()}
        for node in nodes_of(origin):
            if node.target in CALLS:
                places = lines_of[step][node]
                lines = {line for first, last in places for line in range(first, last + 1)}
                assert any(CALLS[node.target] in text[line - 1] for line in lines), (step, node)
                calls[CALLS[node.target]] |= lines
        for first, last in statements[step]:
            for line in range(first, last + 1):
                for call, lines in calls.items():
                    assert call not in text[line - 1] or line in lines, (step, line)
                    seen += call in text[line - 1]
    assert seen > 20


def statements_of(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements in order, those of loops after the loop's."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.For):
            yield from statements_of(statement.body)


def base(name: str) -> str:
    """A name without the number that makes it unique."""
    return re.sub(r"(_\d+)+$", "", name.lower().strip("_"))


@pytest.mark.parametrize("name", SPECS)
def test_a_variable_is_named_by_the_node_of_its_statement(name: str) -> None:
    """Except the variables that a loop carries, which belong to the loop or to what its body returns."""
    _, source, origins = generated(name)
    functions = {item.name: item for item in ast.parse(source).body if isinstance(item, ast.FunctionDef)}
    named = 0
    for step, origin in origins.steps.items():
        for number, statement in enumerate(statements_of(functions[f"run_{step}"].body[1:])):
            nodes = origin.statements[number]
            assert nodes, (step, number)
            if isinstance(statement, ast.Return):
                assert [node.op for node in nodes] == ["output"]
            if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
                continue
            (node,) = nodes
            if base(wanted_name(node)) == base(statement.targets[0].id):
                named += 1
            else:
                returned = node in output_node(node.graph.owning_module).all_input_nodes
                assert node.target is loop or node.op == "output" or returned, (step, ast.unparse(statement), node)
    assert named > 100


def test_a_statement_that_a_write_makes_early_belongs_to_its_own_node() -> None:
    """What waits to be printed inside another expression gets its statement before a write: it is not the write's."""
    b = GraphBuilder()
    x, y = (b.placeholder(name, fake((2, 3), torch.float64)) for name in ("x", "y"))
    early = b.call(torch.ops.aten.neg.default, x)
    write = b.call(torch.ops.aten.copy_.default, x, y)
    late = b.call(torch.ops.aten.sub.Tensor, early, write)
    module = b.output([late])
    printer = GraphPrinter(DIALECT, str, Names(set()))
    printer.origins = StepOrigins(module)
    printer.print(module, {x: Expr("x"), y: Expr("y")})
    statements = [printer.origins.statements[number] for number in range(len(printer.lines))]
    assert ["copy_" in line for line in printer.lines][:2] == [False, True]
    assert statements[:2] == [[early], [write]]


def test_a_function_that_was_edited_afterwards_has_no_lines() -> None:
    """Wrong links would be worse than none."""
    _, source, origins = generated("smollm2-plain")
    head, _, rest = source.partition("\ndef run_decode(")
    body = rest.replace("\n    return ", "\n    extra = 1\n    return ", 1)
    found = lines_of_nodes(head + "\ndef run_decode(" + body, origins)
    assert found["decode"] == {}
    assert found["prefill"] == lines_of_nodes(source, origins)["prefill"]
