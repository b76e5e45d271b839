"""Step graphs as Python functions: signatures, what inputs and outputs are bound to, the provenance comment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from specc.backends.printing.dialect import Dialect
from specc.backends.printing.expression import Expr
from specc.backends.printing.literals import comment_text
from specc.backends.printing.liveness import output_node
from specc.backends.printing.names import Names
from specc.backends.printing.printer import INDENT, GraphPrinter, HelperName
from specc.ir.port import Port

WHOLE_STEPS: Mapping[str, str] = {"step": "Stepped", "plain_step": "Plain"}
"""Graphs of whole steps, for backends that make them (`Dialect.whole_steps`), and their records."""

WRAP = 88


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


def print_step(
    dialect: Dialect,
    step: str,
    module: GraphModule,
    call: Signature,
    helper: HelperName,
    reserved: Iterable[str],
    lines: Mapping[str, int],
) -> str:
    """The function `run_<step>`."""
    parameters = [part.split(":")[0].strip() for part in call.parameters.split(",")]
    printer = GraphPrinter(dialect, helper, Names({*reserved, *parameters}))
    values = printer.print(module, bindings(module, step, call.sources))
    ports: tuple[Port, ...] = output_node(module).meta["ports"]
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
    returns = {"": "State", "tuple": "tuple[State, " + ", ".join("Tensor" for _ in results) + "]"}
    annotation = returns.get(call.result, f"tuple[State, {call.result}]")
    if call.result == "":
        final = f"return {state}"
    elif call.result == "tuple":
        final = f"return {', '.join([state, *(value.text for _, value in results)])}"
    else:
        final = f"return {state}, {call.result}({', '.join(f'{name}={value.text}' for name, value in results)})"
    head += f"{annotation}:"
    body = [f'{INDENT}"""{TITLES[step]}"""', *printer.lines, INDENT + final]
    return "\n".join([*provenance_comment(module, lines), head, *body])
