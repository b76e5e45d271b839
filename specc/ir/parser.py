"""Reads what `printer` writes: whole programs, or one graph."""

from __future__ import annotations

import json
import operator
from typing import Any, get_args

import torch
from torch.fx import Graph, GraphModule, Node

from specc.ir import ops as _ops  # noqa: F401  (declares the ops that the text may name)
from specc.ir.build import fake
from specc.ir.clone import graph_module
from specc.ir.lexer import MAX_DEPTH, Reader, Token
from specc.ir.loop import AXES, loop
from specc.ir.port import Port, Sentinel, ValueRange
from specc.ir.text import VERSION, parse_target
from specc.program import DecodeProgram, Role, Slot, Weight

_UNBOUND = ("index", "carried", "slice", "invariant", "param")
_BOUND = ("slot", "weight", "input")


def parse_module(text: str, file: str = "<ir>") -> GraphModule:
    """The graph of a text that holds one graph. Raises DiagnosticError: SPC300, SPC301, SPC302."""
    reader = _open(text, file)
    reader.expect("graph")
    reader.name()
    module = _graph(reader)
    if reader.current.kind != "end":
        reader.fail("SPC301", "expected the end of the text")
    return module


def parse_program(text: str, file: str = "<ir>") -> DecodeProgram:
    """The program of a text written by `print_program`. Raises DiagnosticError: SPC300, SPC301, SPC302."""
    reader = _open(text, file)
    reader.expect("program")
    name = reader.name()
    reader.end_line()
    parts = _Declarations()
    while reader.current.kind != "end":
        _declaration(reader, parts)
    return DecodeProgram(
        name, parts.slots, parts.weights, parts.graphs, frozenset(parts.properties), parts.attributes, parts.ranges
    )


class _Declarations:
    def __init__(self) -> None:
        self.properties: list[str] = []
        self.attributes: dict[str, Any] = {}
        self.slots: dict[str, Slot] = {}
        self.weights: dict[str, Weight] = {}
        self.ranges: dict[str, ValueRange] = {}
        self.graphs: dict[str, GraphModule] = {}


class _IrReader(Reader):
    """A Reader that knows the nodes of the graph being read; its types are fakes of the IR's mode."""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text, file)
        self.nodes: dict[str, Node] = {}
        self.blocks = 0
        self.loop_comment = ""

    def node(self, token: Token) -> Node:
        if token.text not in self.nodes:
            self.fail("SPC302", f"no node `%{token.text}` above this line", token)
        return self.nodes[token.text]

    def make_fake(self, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
        return fake(shape, dtype)


def _open(text: str, file: str) -> _IrReader:
    reader = _IrReader(text, file)
    reader.skip_lines()
    start = reader.current
    if not reader.accept("specc-ir"):
        reader.fail("SPC300", f"IR text starts with `specc-ir {VERSION}`", start)
    version = reader.integer()
    if version != VERSION:
        reader.fail("SPC300", f"this is IR text of version {version}; this compiler reads {VERSION}", start)
    reader.end_line()
    return reader


def _declaration(reader: _IrReader, parts: _Declarations) -> None:
    word = reader.kind("word", "a declaration")
    if word.text == "properties":
        parts.properties.append(reader.name())
        while reader.accept(","):
            parts.properties.append(reader.name())
        reader.end_line()
        return
    name = reader.name()
    table: Any = getattr(parts, f"{word.text}s", None)
    if table is None or word.text not in ("attribute", "slot", "weight", "range", "graph"):
        reader.fail("SPC301", f"unknown declaration `{word.text}`", word)
    if name in table:
        reader.fail("SPC301", f"{word.text} `{name}` is declared twice", word)
    if word.text == "graph":
        table[name] = _graph(reader)
        return
    if word.text == "attribute":
        reader.expect("=")
        table[name] = reader.literal()
    elif word.text == "slot":
        table[name] = _slot(reader, name)
    elif word.text == "weight":
        table[name] = _weight(reader, name)
    else:
        table[name] = _range(reader)
    reader.end_line()


def _options(reader: _IrReader, allowed: dict[str, tuple[type, ...]], required: tuple[str, ...]) -> dict[str, Any]:
    """`key=value …` up to the end of the line; plain words are strings here."""
    found: dict[str, Any] = {}
    start = reader.current
    while reader.current.kind == "word":
        key = reader.take()
        reader.expect("=")
        is_word = reader.current.kind == "word" and str in allowed.get(key.text, ())
        value = reader.take().text if is_word else reader.literal()
        if key.text not in allowed or type(value) not in allowed[key.text]:
            reader.fail("SPC301", f"`{key.text}` can't stand here with this value", key)
        found[key.text] = value
    missing = [key for key in required if key not in found]
    if missing:
        reader.fail("SPC301", f"`{missing[0]}` is missing", start)
    return found


def _slot(reader: _IrReader, name: str) -> Slot:
    reader.expect(":")
    shape, dtype = reader.declared()
    allowed: dict[str, tuple[type, ...]] = {"role": (str,), "fill": (int, float, bool), "batch_dim": (int,)}
    allowed |= {"doc": (str,), "alias": (str,)}
    found = _options(reader, allowed, ("role", "fill", "batch_dim", "doc"))
    if found["role"] not in get_args(Role):
        reader.fail("SPC301", f"`{found['role']}` is not a role of a slot")
    return Slot(name, shape, dtype, **found)


def _weight(reader: _IrReader, name: str) -> Weight:
    reader.expect(":")
    shape, dtype = reader.declared()
    counts: dict[str, tuple[type, ...]] = dict.fromkeys(("layers", "first_layer", "layer_step", "experts"), (int,))
    texts: dict[str, tuple[type, ...]] = {"model": (str,), "sources": (list,), "form": (str,)}
    found = _options(reader, counts | texts, ("model", "sources"))
    if found["model"] not in ("target", "draft") or not all(isinstance(item, str) for item in found["sources"]):
        reader.fail("SPC301", "a weight has model=target|draft and a list of source names")
    return Weight(name, shape, dtype, **(found | {"sources": tuple(found["sources"])}))


def _range(reader: _IrReader) -> ValueRange:
    reader.expect("=")
    reader.expect("[")
    low = reader.integer()
    reader.expect(",")
    high = reader.integer()
    reader.expect("]")
    sentinel = _options(reader, {"sentinel": (str,)}, ()).get("sentinel")
    if sentinel is not None and sentinel not in get_args(Sentinel):
        reader.fail("SPC301", f"`{sentinel}` is not a sentinel")
    return ValueRange(low, high, sentinel)


def _graph(reader: _IrReader) -> GraphModule:
    """`{`, lines, `return …`, `}`; the cursor ends behind the line of the closing brace."""
    reader.expect("{")
    reader.end_line()
    return _block(reader)


def _block(reader: _IrReader) -> GraphModule:
    reader.blocks += 1
    if reader.blocks > MAX_DEPTH:
        reader.fail("SPC301", f"loops nested more than {MAX_DEPTH} deep")
    outer, reader.nodes = reader.nodes, {}
    graph, root = Graph(), torch.nn.Module()
    while not reader.sees("return"):
        _line(reader, graph, root)
    _return(reader, graph)
    reader.expect("}")
    reader.end_line()
    reader.nodes = outer
    reader.blocks -= 1
    return graph_module(root, graph)


def _return(reader: _IrReader, graph: Graph) -> None:
    reader.expect("return")
    ports: list[Port] = []
    if reader.current.kind == "word" and reader.current.text in ("slot", "result"):
        values: Any = []
        while True:
            kind: Any = reader.kind("word", "`slot` or `result`").text
            ports.append(Port(kind, reader.name()))
            reader.expect("=")
            values.append(reader.literal())
            if not reader.accept(","):
                break
        values = tuple(values)
    else:
        values = reader.literal()
    node = graph.output(values)
    types = torch.fx.node.map_arg(values, lambda item: item.meta["val"])
    _describe(node, types, reader.end_line())
    node.meta["ports"] = tuple(ports)


def _line(reader: _IrReader, graph: Graph, root: torch.nn.Module) -> None:
    token = reader.kind("node", "a line `%name: type = …`, or `return`")
    reader.expect(":")
    value = reader.type()
    reader.expect("=")
    if reader.sees("loop"):
        node = _loop(reader, graph, root, token)
        comment = reader.loop_comment
    else:
        node = _right(reader, graph, token)
        comment = reader.end_line()
    _name(reader, node, token)
    _describe(node, value, comment)


def _name(reader: _IrReader, node: Node, token: Token) -> None:
    """FX renames what clashes (a name used twice, a Python keyword): refuse that instead."""
    if node.name != token.text or token.text in reader.nodes:
        reader.fail("SPC301", f"`%{token.text}` can't be the name of a node here (used twice, or reserved)", token)
    reader.nodes[token.text] = node


def _describe(node: Node, value: Any, comment: str) -> None:
    node.meta["val"] = value
    found: dict[str, tuple[str, ...]] = {"keys": (), "passes": ()}
    for part in comment.removeprefix("#").split(";"):
        label, _, names = part.strip().partition(": ")
        if label in found:
            found[label] = tuple(_comment_word(name.strip()) for name in names.split(", "))
    node.meta.update(found)


def _comment_word(word: str) -> str:
    """Comments are not checked: a word that is neither plain nor a JSON string is taken as it stands."""
    try:
        return str(json.loads(word)) if word.startswith('"') else word
    except json.JSONDecodeError:
        return word


def _right(reader: _IrReader, graph: Graph, token: Token) -> Node:
    if reader.current.kind == "node":
        source = reader.node(reader.take())
        reader.expect("[")
        index = reader.integer()
        reader.expect("]")
        return graph.create_node("call_function", operator.getitem, (source, index), {}, token.text)
    word = reader.kind("word", "an op")
    if word.text in _UNBOUND:
        return graph.create_node("placeholder", token.text, (), {}, token.text)
    if word.text in _BOUND:
        node = graph.create_node("placeholder", token.text, (), {}, token.text)
        kind: Any = word.text
        node.meta["port"] = Port(kind, reader.name())
        return node
    target = parse_target(word.text)
    if target is None:
        hint = "this line can be printed but not read back" if word.text in ("py", "attr", "method", "module") else ""
        reader.fail("SPC302", f"unknown op `{word.text}`", word, hint)
    args, kwargs = _arguments(reader)
    return graph.create_node("call_function", target, tuple(args), kwargs, token.text)


def _arguments(reader: _IrReader) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    reader.expect("(")
    while not reader.accept(")"):
        ahead = reader.tokens[reader.at + 1] if reader.current.kind == "word" else None
        if ahead is not None and ahead.text == "=":
            key = reader.take().text
            reader.expect("=")
            kwargs[key] = reader.literal()
        else:
            args.append(reader.literal())
        if not reader.sees(")"):
            reader.expect(",")
    return args, kwargs


def _loop(reader: _IrReader, graph: Graph, root: torch.nn.Module, token: Token) -> Node:
    """A loop with its body; leaves its comment in `reader.loop_comment`."""
    reader.expect("loop")
    axis = reader.kind("word", "an axis")
    if axis.text not in AXES:
        reader.fail("SPC302", f"unknown axis `{axis.text}`", axis)
    reader.expect("trip")
    reader.expect("=")
    trip = reader.literal()
    groups = []
    for label in ("carried", "sliced", "invariant"):
        reader.expect(label)
        reader.expect("=")
        reader.expect("[")
        groups.append(reader.items("]"))
    reader.expect("@")
    at = reader.current
    target = reader.name()
    alias = reader.kind("node", "a name").text if reader.accept("as") else target
    reader.expect("{")
    comment = reader.end_line()
    body = _block(reader)
    reader.loop_comment = comment
    if not target.isidentifier() or hasattr(root, target):
        reader.fail("SPC301", f"`{target}` can't be the name of a body here (used twice, or reserved)", at)
    root.add_module(target, body)
    attribute = graph.create_node("get_attr", target, (), {}, alias)
    if attribute.name != alias:
        reader.fail("SPC301", f"`{alias}` can't be the name of a body here (used twice, or reserved)", at)
    _describe(attribute, None, comment)
    return graph.create_node("call_function", loop, (axis.text, attribute, trip, *groups), {}, token.text)
