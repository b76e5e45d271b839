"""Step graphs as Python functions: signatures, what inputs and outputs are bound to, the provenance comment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.backends.printing.by_layer import LayerLists, listed_results, slots_shared
from specc.backends.printing.dialect import Dialect
from specc.backends.printing.expression import ATOM, Expr
from specc.backends.printing.literals import comment_text
from specc.backends.printing.liveness import output_node
from specc.backends.printing.names import Names
from specc.backends.printing.origins import Origins
from specc.backends.printing.printer import INDENT, GraphPrinter, HelperName
from specc.ir.port import Port

BETWEEN = "between"
WHOLE_STEPS: Mapping[str, str] = {"step": "Stepped", "plain_step": "Plain", BETWEEN: "Turned"}
"""Graphs of whole steps, for backends that make them (`Dialect.whole_steps`), and their records; BETWEEN is what stands
between two verifications, which is made to be timed alone."""

WRAP = 88
ONE_LAYER = ".unsqueeze(0)"


@dataclass(frozen=True, slots=True)
class Signature:
    """How a step is called: its parameters as source, and the records that its inputs come from.

    `sources` maps an input's name to the expression that holds it; `result` names the NamedTuple of its results
    ("" : no results; "tuple": the plain values behind the state).
    """

    parameters: str
    sources: Mapping[str, str]
    result: str


TITLES: Mapping[str, str] = {
    "prefill": "Append a chunk of the prompts and pick the token after it.",
    "decode": "One plain step: commit the root token, pick the next one.",
    "draft": "Draft a tree (or chain) of tokens below the root token.",
    "verify": "Run the target on all drafted nodes at once.",
    "accept": "Take a root path of the draft, and the bonus token after it.",
    "commit": "Make the accepted nodes part of the committed state.",
    "flush": "Apply whatever a deferred commit has left pending.",
    "step": "Draft, verify, accept and commit; the state changes in place.",
    "plain_step": "Commit the root token, pick the next one; the state changes in place.",
    BETWEEN: "Accept and commit, then draft again; the state changes in place.",
}


def signature(step: str, inputs: Iterable[str], draft: Iterable[str], verified: Iterable[str]) -> Signature:
    """The signature of step function `run_<step>`; raises TypeError for an input that nothing provides."""
    names = list(inputs)
    if step == "prefill":
        return Signature(
            "weights: Weights, state: State, input_ids: Tensor, lengths: Tensor",
            {name: name for name in ("input_ids", "lengths")},
            "tuple",
        )
    if step == "decode":
        return Signature("weights: Weights, state: State", {}, "Decoded")
    if step == "draft":
        return Signature("weights: Weights, state: State", {}, "Draft")
    if step == "verify":
        kind = "Tensor" if "parent" in names else "Tensor | None"
        parameters = f"weights: Weights, state: State, tokens: Tensor, parent: {kind}, valid: {kind}"
        return Signature(parameters, {name: name for name in ("tokens", "parent", "valid")}, "Verified")
    if step == "accept":
        sources = {name: f"verified.{name}" for name in verified} | {name: f"draft.{name}" for name in draft}
        return Signature("state: State, verified: Verified, draft: Draft", sources, "Accepted")
    if step == "commit":
        sources = {name: f"accepted.{name}" for name in names} | {name: f"verified.{name}" for name in verified}
        return Signature("state: State, verified: Verified, accepted: Accepted", sources, "")
    if step == "flush":
        return Signature("state: State", {}, "")
    if step == BETWEEN:
        sources = {name: f"verified.{name}" for name in verified} | {name: f"draft.{name}" for name in draft}
        parameters = "weights: Weights, state: State, verified: Verified, draft: Draft"
        return Signature(parameters, sources, WHOLE_STEPS[step])
    if step in WHOLE_STEPS:
        return Signature("weights: Weights, state: State", {}, WHOLE_STEPS[step])
    raise TypeError(f"a step graph called {step!r} has no place in the module's interface")


def provenance(module: GraphModule) -> tuple[list[str], list[str]]:
    """Spec keys and passes of all nodes, loop bodies included, in order of appearance."""
    keys: dict[str, None] = {}
    passes: dict[str, None] = {}
    for item in module.modules():
        if isinstance(item, GraphModule):
            for node in item.graph.nodes:
                keys.update(dict.fromkeys(node.meta.get("keys", ())))
                passes.update(dict.fromkeys(node.meta.get("passes", ())))
    return list(keys), list(passes)


def provenance_comment(module: GraphModule, lines: Mapping[str, int]) -> list[str]:
    """`# Spec: verify.attention (line 24), …` and `# Passes: lower, layer-major`."""
    keys, passes = provenance(module)
    shown = [f"{comment_text(key)} (line {lines[key]})" if key in lines else comment_text(key) for key in keys]
    out = _wrapped("# Spec: ", shown or ["nothing"])
    return out + _wrapped("# Passes: ", [comment_text(name) for name in passes] or ["none"])


def _wrapped(start: str, items: list[str]) -> list[str]:
    lines = [start]
    for number, item in enumerate(items):
        text = item + ("," if number + 1 < len(items) else "")
        if len(lines[-1]) + len(text) + 1 > WRAP and lines[-1] != start:
            lines.append("#     ")
        lines[-1] += text if lines[-1].endswith(" ") else f" {text}"
    return lines


def state_type(dialect: Dialect) -> str:
    """The record of slots that step functions take and return."""
    return "Views" if dialect.by_layer else "State"


def _own_memory(
    module: GraphModule, ports: Sequence[Port], values: Sequence[Expr], layered: frozenset[str], lists: frozenset[Node]
) -> list[Expr]:
    """The outputs for slots that are then written in place: layered ones by layer, none in another slot's memory."""
    nodes: Any = output_node(module).args[0]
    shared = slots_shared(module)
    found = []
    for port, value, node in zip(ports, values, nodes, strict=True):
        own = {port.name} if port.kind == "slot" else set[str]()
        copied = bool(shared.get(node, frozenset()) - own)
        text = value.at(ATOM)
        if _is_one_layer(node, text) and not copied and port.kind == "slot" and port.name in layered:
            # The layer itself: a copy into its memory then has the value's last op as its source.
            text = f"[{text.removesuffix(ONE_LAYER)}]"
        elif node in lists:
            text = f"[rows.clone() for rows in {text}]" if copied else text
        else:
            text += ".clone()" if copied else ""
            text += ".unbind(0)" if port.kind == "slot" and port.name in layered else ""
        found.append(Expr(text) if text != value.at(ATOM) else value)
    return found


def _is_one_layer(node: Node, text: str) -> bool:
    """Whether a layered value is one layer's tensor with a dim in front, written as such."""
    return node.target is torch.ops.aten.unsqueeze.default and text.endswith(ONE_LAYER)


def bindings(module: GraphModule, step: str, sources: Mapping[str, str]) -> dict[Node, Expr]:
    """What each placeholder is in the generated function."""
    bound: dict[Node, Expr] = {}
    for node in module.graph.nodes:
        if node.op != "placeholder":
            continue
        port: Port = node.meta["port"]
        if port.kind == "input":
            if port.name not in sources:
                raise TypeError(f"{step} has an input `{port.name}` that no earlier step results in")
            bound[node] = Expr(sources[port.name])
        elif port.kind == "weight":
            if step in ("accept", "commit", "flush"):
                raise TypeError(f"{step} reads the weight `{port.name}`; its interface has no weights")
            bound[node] = Expr(f"weights.{port.name}")
        else:
            bound[node] = Expr(f"state.{port.name}")
    return bound


def _stack_whole(printer: GraphPrinter, bound: dict[Node, Expr], layered: frozenset[str]) -> None:
    """Layered slots that something reads as a whole get a variable of their own."""
    for node, value in list(bound.items()):
        port: Port = node.meta["port"]
        if port.kind == "slot" and port.name in layered and node not in printer.lists and node.users:
            name = printer.names.fresh(node.name)
            printer.emit(f"{name} = torch.stack(list({value.text}))")
            bound[node] = Expr(name)


def print_step(
    dialect: Dialect,
    step: str,
    module: GraphModule,
    call: Signature,
    helper: HelperName,
    reserved: Iterable[str],
    lines: Mapping[str, int],
    layered: frozenset[str] = frozenset(),
    origins: Origins | None = None,
) -> str:
    """The function `run_<step>`; `layered` are the slots that it takes and returns by layer."""
    parameters = [part.split(":")[0].strip() for part in call.parameters.split(",")]
    printer = GraphPrinter(dialect, helper, Names({*reserved, *parameters}))
    printer.origins = None if origins is None else origins.begin(step, module)
    ports: tuple[Port, ...] = output_node(module).meta["ports"]
    bound = bindings(module, step, call.sources)
    if dialect.by_layer:
        call = replace(call, parameters=call.parameters.replace("state: State", f"state: {state_type(dialect)}"))
        printer.lists = frozenset(LayerLists(module, layered).nodes)
        _stack_whole(printer, bound, layered)
    elif dialect.listed:
        printer.lists = listed_results(module)
    values = printer.print(module, bound)
    if dialect.by_layer:
        values = _own_memory(module, ports, values, layered, printer.lists)
    if printer.origins is not None:
        printer.origins.statement(len(printer.lines), printer.at)  # the return statement
    slots = [(port.name, value) for port, value in zip(ports, values, strict=True) if port.kind == "slot"]
    results = [(port.name, value) for port, value in zip(ports, values, strict=True) if port.kind == "result"]
    head = f"def run_{step}({call.parameters}) -> "
    if step in WHOLE_STEPS:
        final = f"return {call.result}({', '.join(f'{name}={value.text}' for name, value in results)})"
        body = [f'{INDENT}"""{TITLES[step]}"""', *printer.lines, INDENT + final]
        return "\n".join([*provenance_comment(module, lines), f"{head}{call.result}:", *body])
    state = "state"
    if slots:
        state = f"state._replace({', '.join(f'{name}={value.text}' for name, value in slots)})"
    kind = state_type(dialect)
    returns = {"": kind, "tuple": f"tuple[{kind}, " + ", ".join("Tensor" for _ in results) + "]"}
    annotation = returns.get(call.result, f"tuple[{kind}, {call.result}]")
    if call.result == "":
        final = f"return {state}"
    elif call.result == "tuple":
        final = f"return {', '.join([state, *(value.text for _, value in results)])}"
    else:
        final = f"return {state}, {call.result}({', '.join(f'{name}={value.text}' for name, value in results)})"
    head += f"{annotation}:"
    body = [f'{INDENT}"""{TITLES[step]}"""', *printer.lines, INDENT + final]
    return "\n".join([*provenance_comment(module, lines), head, *body])
