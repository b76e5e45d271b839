"""Deterministic IR text: one op per line, loops as indented blocks, spec keys and passes as trailing comments.

    specc-ir 1
    graph verify {
      %tokens: i64[B,5] = input tokens
      %x: f32[B,5,64] = aten.embedding(%w, %tokens)  # keys: verify; passes: lower
      %layers: (f32[B,5,64]) = loop layer trip=2 carried=[%x] sliced=[] invariant=[] @layers_body {
        %index: int = index
        %x: f32[B,5,64] = carried
        return (%x,)
      }
      …
      return result logits = %logits
    }

`parser` reads this back; print -> parse -> print is a fixed point. Without comments the text is what
`fingerprint` hashes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from specc.ir.dims import type_text
from specc.ir.edit import is_loop, loop_parts
from specc.ir.port import Port
from specc.ir.text import VERSION, literal_text, target_text, word_text
from specc.ir.types import value_text
from specc.program import DecodeProgram, Slot, Weight

Line = tuple[str, Node | None]
HEADER = f"specc-ir {VERSION}"


def print_module(module: GraphModule, name: str = "main", *, comments: bool = True) -> str:
    """The IR text of one graph."""
    return "\n".join([HEADER, *(text for text, _ in graph_lines(module, name, comments))]) + "\n"


def print_program(program: DecodeProgram, *, comments: bool = True) -> str:
    """The IR text of a whole program: declarations, then its graphs."""
    lines = [HEADER, f"program {json.dumps(program.name)}"]
    if program.properties:
        lines.append(f"properties {', '.join(word_text(name) for name in sorted(program.properties))}")
    lines += [f"attribute {word_text(name)} = {literal_text(value)}" for name, value in program.attributes.items()]
    lines += [_slot_text(slot) for slot in program.slots.values()]
    lines += [_weight_text(weight) for weight in program.weights.values()]
    for name, bounds in program.ranges.items():
        sentinel = "" if bounds.sentinel is None else f" sentinel={bounds.sentinel}"
        lines.append(f"range {json.dumps(name)} = [{bounds.low}, {bounds.high}]{sentinel}")
    for name, graph in program.graphs.items():
        lines += [text for text, _ in graph_lines(graph, name, comments)]
    return "\n".join(lines) + "\n"


def fingerprint(item: DecodeProgram | GraphModule) -> str:
    """sha256 of the text without comments: equal for programs that differ in provenance only (I28)."""
    text = (
        print_program(item, comments=False) if isinstance(item, DecodeProgram) else print_module(item, comments=False)
    )
    return hashlib.sha256(text.encode()).hexdigest()


def graph_lines(module: GraphModule, name: str, comments: bool = True) -> list[Line]:
    """The lines of one graph with the node that each stands for."""
    return [(f"graph {word_text(name)} {{", None), *_block(module, None, "  ", comments), ("}", None)]


def _slot_text(slot: Slot) -> str:
    text = f"slot {word_text(slot.name)}: {_declared(slot)} role={slot.role} fill={slot.fill!r}"
    text += f" batch_dim={slot.batch_dim} doc={json.dumps(slot.doc)}"
    return text if slot.alias is None else f"{text} alias={json.dumps(slot.alias)}"


def _weight_text(weight: Weight) -> str:
    layers = "" if weight.layers is None else f" layers={weight.layers}"
    sources = literal_text(list(weight.sources))
    rest = "".join(
        f" {key}={value}"
        for key, value, usual in (
            ("first_layer", weight.first_layer, 0),
            ("layer_step", weight.layer_step, 1),
            ("experts", weight.experts, 0),
            ("form", json.dumps(weight.form), '""'),
        )
        if value != usual
    )
    return f"weight {word_text(weight.name)}: {_declared(weight)}{layers} model={weight.model} sources={sources}{rest}"


def _declared(item: Slot | Weight) -> str:
    return type_text(item.shape, item.dtype)


def _comment(node: Node, comments: bool) -> str:
    if not comments:
        return ""
    parts = []
    for label in ("keys", "passes"):
        if node.meta.get(label):
            words = (word_text(item).replace(",", "\\u002c").replace(";", "\\u003b") for item in node.meta[label])
            parts.append(f"{label}: {', '.join(words)}")
    return f"  # {'; '.join(parts)}" if parts else ""


def _block(module: GraphModule, loop_node: Node | None, indent: str, comments: bool) -> Iterator[Line]:
    kinds = _placeholder_kinds(loop_node)
    for node in module.graph.nodes:
        if _is_whole_loop(node):
            yield from _loop(node, indent, comments)
        elif node.op == "output":
            yield f"{indent}return {_returned(node)}{_comment(node, comments)}", node
        elif not (node.op == "get_attr" and node.users and all(is_loop(user) for user in node.users)):
            kind = next(kinds, "param") if node.op == "placeholder" else ""
            yield f"{indent}%{node.name}: {_type(node)} = {_right(node, kind)}{_comment(node, comments)}", node


def _is_whole_loop(node: Node) -> bool:
    """A loop whose body can be shown; the verifier prints broken ones too."""
    owner, args = node.graph.owning_module, node.args
    if not is_loop(node) or owner is None or len(args) != 6 or not all(isinstance(item, list) for item in args[3:]):
        return False
    attribute = args[1]
    return isinstance(attribute, Node) and isinstance(getattr(owner, str(attribute.target), None), GraphModule)


def _placeholder_kinds(loop_node: Node | None) -> Iterator[str]:
    if loop_node is not None:
        yield "index"
        for kind, operands in zip(("carried", "slice", "invariant"), loop_node.args[3:6], strict=True):
            assert isinstance(operands, Sequence)
            yield from (kind for _ in operands)


def _loop(node: Node, indent: str, comments: bool) -> Iterator[Line]:
    parts = loop_parts(node)
    lists = " ".join(
        f"{label}={literal_text(list(operands))}"
        for label, operands in (("carried", parts.carried), ("sliced", parts.sliced), ("invariant", parts.invariant))
    )
    target = str(parts.attribute.target)
    alias = "" if parts.attribute.name == target else f" as %{parts.attribute.name}"
    text = f"loop {parts.axis} trip={parts.trip} {lists} @{word_text(target)}{alias} {{"
    yield f"{indent}%{node.name}: {_type(node)} = {text}{_comment(node, comments)}", node
    yield from _block(parts.body, node, indent + "  ", comments)
    yield f"{indent}}}", None


def _type(node: Node) -> str:
    return value_text(node.meta["val"]) if "val" in node.meta else "?"


def _right(node: Node, kind: str) -> str:
    if node.op == "placeholder":
        port: Port | None = node.meta.get("port")
        return kind if port is None else f"{port.kind} {word_text(port.name)}"
    if node.op == "get_attr":
        return f"attr {json.dumps(str(node.target))}"
    if _is_item(node):
        return f"{literal_text(node.args[0])}[{node.args[1]}]"
    if node.op == "call_function":
        target = target_text(node.target)
    else:
        target = node.op.removeprefix("call_") + json.dumps(str(node.target))
    arguments = [literal_text(item) for item in node.args]
    arguments += [f"{name}={literal_text(item)}" for name, item in node.kwargs.items()]
    return f"{target}({', '.join(arguments)})"


def _is_item(node: Node) -> bool:
    return (
        target_text(node.target) == "operator.getitem"
        and len(node.args) == 2
        and not node.kwargs
        and isinstance(node.args[0], Node)
        and type(node.args[1]) is int
    )


def _returned(node: Node) -> str:
    ports: tuple[Port, ...] = node.meta.get("ports", ())
    values: Any = node.args[0]
    if not ports or len(ports) != len(values):
        return literal_text(values)
    return ", ".join(
        f"{port.kind} {word_text(port.name)} = {literal_text(value)}" for port, value in zip(ports, values, strict=True)
    )
