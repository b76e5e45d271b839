"""The verifier: is this program well-formed, legal at its level, and typed as it says?

Loop bodies are visited once. A finding shows the code, the op with five IR lines around it, the spec keys that it
comes from, and the passes that made it.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.fx import GraphModule, Node

from specc.diagnostics import Diagnostic, DiagnosticError, Span, error
from specc.ir import ops as _ops  # noqa: F401  (declares the ops that may occur)
from specc.ir.build import output_values, value_of
from specc.ir.edit import is_loop
from specc.ir.effects import stale_reads
from specc.ir.loop import AXES, loop
from specc.ir.op import info
from specc.ir.port import Port
from specc.ir.printer import graph_lines
from specc.ir.text import ARITHMETIC, target_text
from specc.ir.types import LoopTypeError, body_of, node_type, operand_types, same_type, value_text
from specc.program import BUFFERED, DecodeProgram, Weight

Level = Literal["value", "buffer"]
MAX_FINDINGS = 10
CONTEXT_LINES = 5
# What ops raise on operands that do not fit, fake or real.
OP_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AssertionError, NotImplementedError)


@dataclass(slots=True)
class _Report:
    """Findings in one program; knows how to show a node in its graph."""

    after: str | None
    spans: Mapping[str, Span]
    root: GraphModule | None = None
    name: str = "main"
    findings: list[Diagnostic] = field(default_factory=list)

    def add(self, code: str, message: str, node: Node | None = None, help: str = "") -> None:
        if len(self.findings) >= MAX_FINDINGS:
            return
        notes, span = [], None
        if node is not None:
            notes.append(self._excerpt(node))
            keys = node.meta.get("keys", ())
            span = next((self.spans[key] for key in keys if key in self.spans), None)
            if keys:
                notes.append(f"comes from the spec's {', '.join(f'`{key}`' for key in keys)}")
            if node.meta.get("passes"):
                notes.append(f"made by {', '.join(node.meta['passes'])}")
        if self.after is not None:
            notes.append(f"found after pass `{self.after}`")
        where = f"in graph `{self.name}`: {message}"
        self.findings.append(error(code, where, span, help=help, notes=notes))

    def _excerpt(self, node: Node) -> str:
        assert self.root is not None
        lines = graph_lines(self.root, self.name)
        at = next((number for number, (_, owner) in enumerate(lines) if owner is node), None)
        if at is None:
            return f"the node `{node.name}` is not printed"
        first = max(0, at - CONTEXT_LINES)
        shown = enumerate(lines[first : at + CONTEXT_LINES + 1], first)
        return "\n".join(["the IR there:", *(f"{'>' if number == at else ' '} {text}" for number, (text, _) in shown)])


def verify(
    item: DecodeProgram | GraphModule,
    *,
    level: Level | None = None,
    after: str | None = None,
    spans: Mapping[str, Span] | None = None,
    only: Collection[str] | None = None,
) -> None:
    """Raise DiagnosticError (SPC310 to SPC316) with everything that is wrong, up to ten findings.

    `level` defaults to "buffer" for a program with BUFFERED, else "value": there nothing may write in place. `after`
    names the pass that just ran, `spans` maps spec keys to places in the YAML. `only` names the graphs to look into,
    where the others are known to be fine; ports are always checked.
    """
    report = _Report(after, spans or {})
    graphs: Mapping[str, GraphModule]
    if isinstance(item, DecodeProgram):
        level = level or ("buffer" if BUFFERED in item.properties else "value")
        graphs = item.graphs
    else:
        level, graphs = level or "value", {"main": item}
    for name, module in graphs.items():
        report.root, report.name = module, name
        if isinstance(item, DecodeProgram):
            _check_ports(item, module, report)
        if only is not None and name not in only:
            continue
        _check_module(module, level, report, set())
        if level == "buffer" and not report.findings:
            for node, slot in stale_reads(module):
                report.add("SPC316", f"`{node.name}` reads slot `{slot}` after it was overwritten", node)
    if report.findings:
        raise DiagnosticError(report.findings)


def _check_module(module: GraphModule, level: Level, report: _Report, seen: set[int]) -> None:
    try:
        module.graph.lint()
    except RuntimeError as problem:
        report.add("SPC310", f"the graph is malformed: {problem}")
        return
    for node in module.graph.nodes:
        missing = [key for key in ("val", "keys", "passes") if key not in node.meta]
        if missing:
            report.add("SPC313", f"`{node.name}` has no {' and no '.join(missing)}", node)
            continue
        if any("val" not in operand.meta for operand in node.all_input_nodes):
            continue  # reported there
        illegal = _illegal(node, level)
        if illegal:
            report.add("SPC311", f"`{node.name}`: {illegal}", node)
            continue
        if is_loop(node):
            _check_loop(module, node, level, report, seen)
        _check_type(module, node, report)


def _illegal(node: Node, level: Level) -> str:
    """Why this node may not stand here, or ''."""
    if node.op in ("placeholder", "output", "get_attr"):
        return ""
    if node.op != "call_function":
        return f"{node.op} nodes are not part of the IR"
    if node.target is loop:
        return ""
    if isinstance(node.target, torch._ops.OpOverload):
        return _illegal_op(node.target, level)
    if node.target not in ARITHMETIC.values():
        return f"{target_text(node.target)} is not an op of the IR"
    values = value_of(node.args)
    if node.target is operator.getitem:
        fine = isinstance(values[0], (list, tuple)) and type(values[1]) is int
        return "" if fine else "getitem takes a tuple and a constant number"
    return "" if all(type(value) is int for value in values) else f"{target_text(node.target)} is for ints only"


def _illegal_op(target: torch._ops.OpOverload, level: Level) -> str:
    declared = info(target)
    name = target_text(target)
    if target.namespace == "specc" and declared is None:
        return f"{name} is not a declared op"
    if declared is not None and level not in declared.levels:
        return f"{name} is not legal at level {level} (only {', '.join(sorted(declared.levels))})"
    if target._schema.is_mutable and level == "value":
        return f"{name} writes in place; before plan-buffers everything has value semantics"
    if torch.Tag.nondeterministic_seeded in target.tags:
        return f"{name} draws from a hidden generator; randomness is counter-based"
    return ""


def _check_type(module: GraphModule, node: Node, report: _Report) -> None:
    if node.op == "placeholder":
        return
    try:
        value = node_type(module, node)
    except LoopTypeError as problem:
        report.add("SPC315", f"loop `{node.name}`: {problem}", node)
        return
    except OP_ERRORS as problem:
        report.add("SPC312", f"`{node.name}` can't be computed: {type(problem).__name__}: {problem}", node)
        return
    if not same_type(value, node.meta["val"]):
        recorded = value_text(node.meta["val"])
        report.add("SPC312", f"`{node.name}` is {value_text(value)}, but recorded as {recorded}", node)


def _check_loop(module: GraphModule, node: Node, level: Level, report: _Report, seen: set[int]) -> None:
    problem = _loop_shape_problem(node)
    if problem:
        report.add("SPC315", f"loop `{node.name}`: {problem}", node)
        return
    body = body_of(module, node)
    if id(body) in seen:
        report.add("SPC315", f"loop `{node.name}` shares its body with another loop", node)
        return
    seen.add(id(body))
    inside = [item for item in body.graph.nodes if item.op == "placeholder"]
    types = operand_types(node)
    if len(inside) != len(types):
        report.add("SPC315", f"loop `{node.name}`: {len(types)} operands, {len(inside)} placeholders inside", node)
        return
    for placeholder, value in zip(inside, types, strict=True):
        if "val" in placeholder.meta and not same_type(placeholder.meta["val"], value):
            has = value_text(placeholder.meta["val"])
            message = f"`{placeholder.name}` is {has}, but loop `{node.name}` passes {value_text(value)}"
            report.add("SPC315", message, placeholder)
        if "port" in placeholder.meta:
            report.add("SPC314", f"`{placeholder.name}` is inside a loop and can't be bound to a port", placeholder)
    _check_module(body, level, report, seen)


def _loop_shape_problem(node: Node) -> str:
    if len(node.args) != 6 or node.kwargs:
        return "takes axis, body, trip, carried, sliced, invariant"
    axis, attribute, trip, carried, sliced, invariant = node.args
    if axis not in AXES:
        return f"axis {axis!r} is not one of {', '.join(AXES)}"
    owner = node.graph.owning_module
    if not (isinstance(attribute, Node) and attribute.op == "get_attr" and owner is not None):
        return "the body must be a get_attr node"
    if not isinstance(getattr(owner, str(attribute.target), None), GraphModule):
        return f"`{attribute.target}` is not a graph module"
    if not all(isinstance(group, (list, tuple)) for group in (carried, sliced, invariant)):
        return "carried, sliced and invariant must be lists"
    if trip is None:
        return "" if sliced else "a loop without a trip count needs a sliced operand"
    return _trip_problem(str(axis), trip, value_of(sliced))


def _trip_problem(axis: str, trip: Any, sliced: Any) -> str:
    if type(trip) is not int or trip < 0:
        return f"trip count {trip!r} is not a number of iterations"
    for position, value in enumerate(sliced):
        if isinstance(value, torch.Tensor):
            dim = 1 if axis == "token" else 0
            size = int(value.shape[dim]) if value.dim() > dim else 0
        else:
            size = len(value)
        if size < trip:
            return f"sliced operand {position} has {size} parts for {trip} iterations"
    return ""


def _check_ports(program: DecodeProgram, module: GraphModule, report: _Report) -> None:
    seen: set[Port] = set()
    for node in module.graph.nodes:
        if node.op == "placeholder":
            port = node.meta.get("port")
            if not isinstance(port, Port) or port.kind == "result":
                report.add("SPC314", f"`{node.name}` is not bound to a slot, weight or input", node)
            elif port in seen:
                report.add("SPC314", f"{port.kind} `{port.name}` is bound twice", node)
            else:
                seen.add(port)
                _check_port(program, port, node.meta.get("val"), node, report)
    output = module.graph.output_node()
    ports, values = output.meta.get("ports", ()), output_values(module)
    if len(ports) != len(values):
        report.add("SPC314", f"{len(values)} outputs, but {len(ports)} ports", output)
        return
    returned: set[Port] = set()
    for port, value in zip(ports, values, strict=True):
        if port.kind not in ("slot", "result"):
            report.add("SPC314", f"an output can't be bound to a {port.kind}", output)
        elif port in returned:
            report.add("SPC314", f"{port.kind} `{port.name}` is returned twice", output)
        elif isinstance(value, Node):
            _check_port(program, port, value.meta.get("val"), output, report)
        returned.add(port)


def _check_port(program: DecodeProgram, port: Port, value: Any, node: Node, report: _Report) -> None:
    declared: Any = None
    if port.kind == "slot":
        declared = program.slots.get(port.name)
        if declared is not None and declared.alias is not None:
            report.add("SPC314", f"slot `{port.name}` is not stored, it lives in {declared.alias}", node)
            return
    elif port.kind == "weight":
        declared = program.weights.get(port.name)
    else:
        return
    if declared is None:
        report.add("SPC314", f"the program has no {port.kind} `{port.name}`", node)
        return
    one = torch.empty(declared.shape, dtype=declared.dtype, device="meta")
    layers = declared.layers if isinstance(declared, Weight) else None
    wanted = one if layers is None else (one,) * layers
    if not same_type(wanted, value):
        message = f"{port.kind} `{port.name}` is declared {value_text(wanted)}, but is {value_text(value)} here"
        report.add("SPC314", message, node)
