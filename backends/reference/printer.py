"""Prints one FX step graph as the body of a Python function: a statement per node, `for` loops for loops.

What is printed follows the graph and nothing else: a changed node is changed code. Nodes that FX named itself are
printed inside the one expression that uses them where that keeps the order of evaluation around writes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.backends.reference import expression as e
from specc.backends.reference.aten import constant, write_aten, write_operator
from specc.backends.reference.expression import Expr
from specc.backends.reference.kernels import POINTWISE
from specc.backends.reference.kernels.variants import variant
from specc.backends.reference.liveness import Liveness, analyse, getitem_users, is_impure, loop_body, output_node
from specc.backends.reference.names import Names
from specc.ir.loop import loop
from specc.ir.op import info
from specc.ir.scope import named_arguments

INLINE_OPERATIONS = 3
INLINE_CHARACTERS = 64
INDENT = "    "
# Nouns for nodes that carry FX's own name.
_NOUNS = {
    "add": "total",
    "sub": "difference",
    "mul": "product",
    "div": "quotient",
    "index": "picked",
    "where": "chosen",
    "unsqueeze": "column",
    "squeeze": "row",
    "cat": "joined",
    "getitem": "result",
    "embedding": "embedded",
    "linear": "projected",
    "rms_norm": "normed",
}
# The name of an op's function in the module, or of a function given as such.
HelperName = Callable[[torch._ops.OpOverload | Callable[..., Any]], str]


def mentions(text: str, name: str) -> bool:
    """True if the source `text` reads the local variable `name`."""
    return re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text) is not None


def is_automatic(node: Node) -> bool:
    """True if the node's name is the one that FX makes from its target."""
    base = re.sub(r"\W+", "_", node.graph._target_to_str(node.target)).strip("_")
    return re.fullmatch(rf"{re.escape(base)}(_\d+)*", node.name) is not None


def wanted_name(node: Node) -> str:
    """A readable name before it is made unique."""
    if not is_automatic(node):
        return node.name
    target = node.target
    base = target._schema.name.split("::")[1] if isinstance(target, torch._ops.OpOverload) else node.name
    base = re.sub(r"(_\d+)+$", "", base)
    return _NOUNS.get(base, base)


class GraphPrinter:
    """Prints a graph, and recursively the bodies of its loops, as lines of a function body."""

    def __init__(self, helper: HelperName, names: Names, lines: list[str] | None = None, depth: int = 1) -> None:
        self.helper = helper
        self.names = names
        self.lines: list[str] = [] if lines is None else lines
        self.depth = depth
        self.env: dict[Node, Expr] = {}
        self.results: dict[Node, list[Expr | None]] = {}
        self.deferred: dict[Node, Expr] = {}
        # Nodes whose variable is the loop's carried variable itself: node -> its name.
        self.coalesced: dict[Node, str] = {}
        self.live = Liveness(frozenset())

    # Statements -----------------------------------------------------------------------------------------------

    def emit(self, line: str) -> None:
        """Append one statement at the current depth."""
        self.lines.append(INDENT * self.depth + line)

    def assign(self, node: Node, value: Expr) -> Expr:
        """`name = value`; a carried variable is assigned in place of a new name."""
        if node in self.coalesced:
            name = self.coalesced[node]
            self.flush(lambda text: mentions(text, name))
        else:
            name = self.names.fresh(wanted_name(node))
        self.emit(f"{name} = {value.text}")
        self.env[node] = Expr(name)
        return self.env[node]

    def flush(self, which: Callable[[str], bool] = lambda _: True) -> None:
        """Give every expression that waits to be printed inside another (and satisfies `which`) its own statement."""
        for node, value in list(self.deferred.items()):
            if node in self.deferred and which(value.text):
                del self.deferred[node]
                self.assign(node, value)

    # Arguments ------------------------------------------------------------------------------------------------

    def print_argument(self, value: Any) -> Any:
        """An Expr, or a list of printed items for lists and tuples."""
        if isinstance(value, Node):
            self.deferred.pop(value, None)
            return self.env[value]
        if isinstance(value, (list, tuple)):
            return [self.print_argument(item) for item in value]
        if isinstance(value, slice):
            raise TypeError("slices are written by aten.slice")
        return constant(value)

    def whole(self, value: Any) -> Expr:
        """As `print_argument`, a list as one expression."""
        printed = self.print_argument(value)
        if isinstance(printed, list):
            return e.listing([item if isinstance(item, Expr) else e.listing(item) for item in printed])
        assert isinstance(printed, Expr)
        return printed

    # Graphs ---------------------------------------------------------------------------------------------------

    def print(self, module: GraphModule, bindings: Mapping[Node, Expr], live: Liveness | None = None) -> list[Any]:
        """Print all live nodes; returns the printed output values (None where not wanted)."""
        self.live = analyse(module) if live is None else live
        self.env.update(bindings)
        for node in module.graph.nodes:
            if node in self.live.nodes and node.op == "call_function":
                self.print_node(module, node)
        values: Any = output_node(module).args[0]
        return [self.whole(value) if position in self.live.outputs else None for position, value in enumerate(values)]

    def print_node(self, module: GraphModule, node: Node) -> None:
        """Print one call, or set it aside for the expression that uses it."""
        if node.target is loop:
            from_loop = LoopPrinter(self, module, node)
            from_loop.print()
            return
        source = node.args[0] if node.target is operator.getitem else None
        if isinstance(source, Node) and source in self.results:
            position = node.args[1]
            assert isinstance(position, int)
            value = self.results[source][position]
            assert value is not None
        else:
            value = self.expression(node)
        if is_impure(module, node):
            self.flush()
            if self.live.uses.get(node, 0):
                self.assign(node, value)
            else:
                self.emit(value.text)
        elif value.size == 0:
            self.env[node] = value
        elif self.unpack(node, value):
            return
        elif self.may_inline(node, value):
            self.env[node] = self.deferred[node] = value
        else:
            self.assign(node, value)

    def may_inline(self, node: Node, value: Expr) -> bool:
        """Used once, outside loop operands, unnamed by its author, and short."""
        return (
            node not in self.coalesced
            and self.live.uses.get(node, 0) == 1
            and node not in self.live.loop_operands
            and is_automatic(node)
            and value.size <= INLINE_OPERATIONS
            and len(value.text) <= INLINE_CHARACTERS
        )

    def unpack(self, node: Node, value: Expr) -> bool:
        """`cos, sin = …` for an op that returns a tuple; False if it is no such op."""
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or len(target._schema.returns) < 2:
            return False
        users = getitem_users(node)
        if users is None:
            return False
        parts: list[str] = []
        for position in range(len(target._schema.returns)):
            items = [item for item in users.get(position, []) if item in self.live.nodes]
            if not items:
                parts.append("_")
                continue
            name = self.names.fresh(wanted_name(items[0]))
            parts.append(name)
            self.results.setdefault(node, [None] * len(target._schema.returns))[position] = Expr(name)
        self.emit(f"{', '.join(parts)} = {value.text}")
        return True

    def expression(self, node: Node) -> Expr:
        """The call of `node` as source."""
        target = node.target
        declared = info(target)
        chosen = None if declared is None else variant(declared.name, named_arguments(node))
        if chosen is not None:
            given = named_arguments(node)
            return e.call(self.helper(chosen.function), [self.whole(given[name]) for name in chosen.operands])
        printed = [self.print_argument(argument) for argument in node.args]
        keywords = [(name, self.print_argument(item)) for name, item in node.kwargs.items()]
        if target in POINTWISE and len(printed) == 1 and not keywords:
            return e.call(self.helper(POINTWISE[target]), printed)
        if isinstance(target, torch._ops.OpOverload):
            if declared is not None:
                flat = [item if isinstance(item, Expr) else e.listing(item) for item in printed]
                flat_keys = [(name, item if isinstance(item, Expr) else e.listing(item)) for name, item in keywords]
                return e.call(self.helper(target), flat, flat_keys)
            return write_aten(target, printed, node.args, keywords)
        made = write_operator(target, printed)
        if made is None:
            raise TypeError(f"node {node.name}: {target} can't be printed; targets are OpOverloads and int operators")
        return made


class LoopPrinter:
    """Prints one loop node of a graph."""

    def __init__(self, outer: GraphPrinter, module: GraphModule, node: Node) -> None:
        self.outer = outer
        self.module = module
        self.node = node
        self.body = loop_body(module, node)
        axis, _, trip, carried, sliced, invariant = node.args
        self.axis, self.trip = str(axis), trip
        self.carried: Sequence[Any] = carried  # type: ignore[assignment]
        self.sliced: Sequence[Any] = sliced  # type: ignore[assignment]
        self.invariant: Sequence[Any] = invariant  # type: ignore[assignment]
        self.live = outer.live.bodies[node]
        self.wanted = outer.live.results[node]
        places = [item for item in self.body.graph.nodes if item.op == "placeholder"]
        self.index = places[0]
        first, second = 1 + len(self.carried), 1 + len(self.carried) + len(self.sliced)
        self.carried_places, self.sliced_places = places[1:first], places[first:second]
        self.invariant_places = places[second:]
        self.values: Sequence[Any] = output_node(self.body).args[0]  # type: ignore[assignment]

    def print(self) -> None:
        """Initial values, the `for` statement with its body, and where the results are found."""
        outer = self.outer
        inner = GraphPrinter(outer.helper, outer.names, outer.lines, outer.depth + 1)
        initial = {position: outer.whole(self.carried[position]) for position in self._carried_wanted()}
        if is_impure(self.module, self.node):
            outer.flush()
        names: dict[int, str] = {}
        for position, value in initial.items():
            place = self.carried_places[position]
            if self._may_take_over(position, value, place):
                names[position] = value.text
            else:
                names[position] = outer.names.fresh(place.name)
                outer.emit(f"{names[position]} = {value.text}")
            inner.env[place] = Expr(names[position])
        parts = self._lists()
        operands = self._operands()
        indexed = self.index in self.live.nodes or any(place in self.live.nodes for place in self.sliced_places)
        index = Expr(outer.names.fresh(self.axis) if indexed else "_")
        outer.emit(f"for {index.text} in range({self._count(operands)}):")
        inner.env[self.index] = index
        before = len(outer.lines)
        self._slices(inner, index, operands)
        for place, operand in zip(self.invariant_places, self.invariant, strict=True):
            if place in self.live.nodes:
                inner.env[place] = outer.whole(operand)
        inner.coalesced = self._coalesced(names)
        printed = inner.print(self.body, {}, self.live)
        self._finish_body(inner, printed, names, parts)
        if len(outer.lines) == before:
            inner.emit("pass")
        self._bind_results(names, parts)

    def _may_take_over(self, position: int, value: Expr, place: Node) -> bool:
        """True where the initial value's own variable, read by nothing else, can be the carried one."""
        operand = self.carried[position]
        return (
            isinstance(operand, Node)
            and value.text == place.name
            and self.outer.live.uses.get(operand, 0) == 1
            and operand.op == "call_function"
            and operand not in self.outer.coalesced
        )

    def _carried_wanted(self) -> list[int]:
        return [position for position in range(len(self.carried)) if position in self.wanted]

    def _lists(self) -> dict[int, str]:
        """One list per wanted stacked result."""
        parts: dict[int, str] = {}
        for position in range(len(self.carried), len(self.values)):
            if position in self.wanted:
                value = self.values[position]
                base = wanted_name(value) if isinstance(value, Node) else "value"
                parts[position] = self.outer.names.fresh(f"{base}_parts")
                self.outer.emit(f"{parts[position]}: list[Tensor] = []")
        return parts

    def _operands(self) -> list[Expr | None]:
        """The sliced operands (None: not read); a list of nodes becomes a local tuple."""
        operands: list[Expr | None] = []
        for position, (place, operand) in enumerate(zip(self.sliced_places, self.sliced, strict=True)):
            if place not in self.live.nodes and not (position == 0 and self.trip is None):
                operands.append(None)
            elif isinstance(operand, (list, tuple)):
                name = self.outer.names.fresh(f"{place.name}_each")
                items = "".join(f"{self.outer.whole(item).text}, " for item in operand)
                self.outer.emit(f"{name} = ({items})")
                operands.append(Expr(name))
            else:
                operands.append(self.outer.whole(operand))
        return operands

    def _is_tuple(self, position: int) -> bool:
        operand = self.sliced[position]
        return isinstance(operand, (list, tuple)) or isinstance(operand.meta.get("val"), (list, tuple))

    def _count(self, operands: Sequence[Expr | None]) -> str:
        if self.trip is not None:
            return self.outer.whole(self.trip).text
        first = operands[0]
        assert first is not None
        if self._is_tuple(0):
            return f"len({first.text})"
        return f"{first.at(e.ATOM)}.shape[{1 if self.axis == 'token' else 0}]"

    def _slices(self, inner: GraphPrinter, index: Expr, operands: Sequence[Expr | None]) -> None:
        """Bind the slices: a view used once is written where it is used, else it gets a name."""
        for position, (place, operand) in enumerate(zip(self.sliced_places, operands, strict=True)):
            if place not in self.live.nodes or operand is None:
                continue
            if self.axis == "token" and not self._is_tuple(position):
                view = e.subscript(operand, [Expr(":"), Expr(f"{index.text} : {index.text} + 1")])
            else:
                view = e.subscript(operand, [index])
            once = self.live.uses.get(place, 0) <= 1 and place not in self.live.loop_operands
            if once or (self._is_tuple(position) and place not in self.live.loop_operands):
                inner.env[place] = Expr(view.text)
                continue
            name = self.outer.names.fresh(place.name)
            inner.emit(f"{name} = {view.text}")
            inner.env[place] = Expr(name)

    def _coalesced(self, names: Mapping[int, str]) -> dict[Node, str]:
        """Carried values that may be computed straight into the carried variable: nothing reads the old one later."""
        order = {node: number for number, node in enumerate(self.body.graph.nodes)}
        found: dict[Node, str] = {}
        wanted_values = [self.values[position] for position in self.wanted]
        for position, name in names.items():
            value, place = self.values[position], self.carried_places[position]
            if not isinstance(value, Node) or value.op != "call_function" or value in found:
                continue
            source = value.args[0] if value.target is operator.getitem else None
            if isinstance(source, Node) and (source.target is loop or isinstance(source.meta.get("val"), tuple)):
                continue
            later = [user for user in place.users if user in self.live.nodes and order[user] > order[value]]
            if not later and not any(item is place for item in wanted_values):
                found[value] = name
        return found

    def _finish_body(
        self, inner: GraphPrinter, printed: Sequence[Any], names: Mapping[int, str], parts: Mapping[int, str]
    ) -> None:
        """Append the stacked values, then assign the carried ones (at once, where one reads another)."""
        for position, name in parts.items():
            inner.emit(f"{name}.append({printed[position].text})")
        updates = [(name, printed[position].text) for position, name in names.items() if printed[position].text != name]
        tangled = any(
            mentions(text, name) for number, (name, _) in enumerate(updates) for _, text in updates[number + 1 :]
        )
        if tangled:
            inner.emit(f"{', '.join(name for name, _ in updates)} = {', '.join(text for _, text in updates)}")
            return
        for name, text in updates:
            inner.emit(f"{name} = {text}")

    def _bind_results(self, names: Mapping[int, str], parts: Mapping[int, str]) -> None:
        results: list[Expr | None] = [None] * len(self.values)
        for position, name in names.items():
            results[position] = Expr(name)
        for position, name in parts.items():
            joined = f"torch.cat({name}, dim=1)" if self.axis == "token" else f"torch.stack({name})"
            results[position] = Expr(joined, e.ATOM, 1)
        self.outer.results[self.node] = results
        if getitem_users(self.node) is None:
            everything = "".join(f"{item.text}, " for item in results if item is not None)
            self.outer.env[self.node] = Expr(f"({everything})", e.ATOM, 1)
