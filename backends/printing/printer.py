"""Prints one FX step graph as the body of a Python function: a statement per node, `for` loops for loops.

What is printed follows the graph and nothing else: a changed node is changed code. Nodes that FX named itself are
printed inside the one expression that uses them where that keeps the order of evaluation around writes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.backends.printing import expression as e
from specc.backends.printing.aten import constant, write_aten, write_operator
from specc.backends.printing.by_layer import is_layer_of
from specc.backends.printing.dialect import Dialect
from specc.backends.printing.expression import Expr
from specc.backends.printing.liveness import Liveness, analyse, getitem_users, is_impure, output_node
from specc.backends.printing.loops import LoopPrinter
from specc.backends.printing.names import Names
from specc.backends.printing.naming import is_automatic, mentions, wanted_name
from specc.backends.printing.origins import StepOrigins
from specc.backends.printing.regions import Generated, RegionCall
from specc.ir.loop import loop
from specc.ir.op import info
from specc.ir.scope import named_arguments

INLINE_OPERATIONS = 3
INLINE_CHARACTERS = 64
INDENT = "    "
# The name of an op's function in the module, or of a function given as such or by its source.
HelperName = Callable[[torch._ops.OpOverload | Callable[..., Any] | Generated], str]


class GraphPrinter:
    """Prints a graph, and recursively the bodies of its loops, as lines of a function body."""

    def __init__(
        self, dialect: Dialect, helper: HelperName, names: Names, lines: list[str] | None = None, depth: int = 1
    ) -> None:
        self.dialect = dialect
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
        # Nodes that are printed as one tensor per layer (see by_layer.py).
        self.lists: frozenset[Node] = frozenset()
        # Where it is asked for: what each statement comes from, and the nodes that are being printed.
        self.origins: StepOrigins | None = None
        self.at: tuple[Node, ...] = ()

    # Statements -----------------------------------------------------------------------------------------------

    def emit(self, line: str, *nodes: Node) -> None:
        """Append one statement at the current depth, printed for `nodes`, else for those that are being printed."""
        if self.origins is not None:
            self.origins.statement(len(self.lines), nodes or self.at)
        self.lines.append(INDENT * self.depth + line)

    def nested(self) -> GraphPrinter:
        """A printer for a loop's body: one level deeper, into the same lines."""
        inner = GraphPrinter(self.dialect, self.helper, self.names, self.lines, self.depth + 1)
        inner.lists, inner.origins, inner.at = self.lists, self.origins, self.at
        return inner

    def assign(self, node: Node, value: Expr) -> Expr:
        """`name = value`; a carried variable is assigned in place of a new name."""
        if node in self.coalesced:
            name = self.coalesced[node]
            self.flush(lambda text: mentions(text, name))
        else:
            name = self.names.fresh(wanted_name(node))
        self.emit(f"{name} = {value.text}", node)
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
        self.live = analyse(module, self.dialect) if live is None else live
        self.env.update(bindings)
        for unit in self.live.plan.order:
            self.at = unit.nodes if isinstance(unit, RegionCall) else (unit,)
            if isinstance(unit, RegionCall):
                self.print_region(unit)
            elif unit in self.live.nodes:
                self.print_node(module, unit)
        self.at = (output_node(module),)
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

    def print_region(self, call: RegionCall) -> None:
        """One call in place of the region's nodes."""
        wanted = [node in self.live.nodes for node in call.outputs]
        if not call.impure and not any(wanted):
            return
        if call.impure:
            self.flush()
        text = e.call(self.helper(call.generated), [self.whole(node) for node in call.inputs]).text
        for node in call.outputs:
            if node in self.coalesced:
                old = self.coalesced[node]
                self.flush(lambda waiting, old=old: mentions(waiting, old))  # type: ignore[misc]
        names = []
        for node, is_wanted in zip(call.outputs, wanted, strict=True):
            name = self.coalesced.get(node) or (self.names.fresh(wanted_name(node)) if is_wanted else "_")
            names.append(name)
            self.env[node] = Expr(name)
        self.emit(f"{', '.join(names)} = {text}" if names else text)

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
        whole = node.args[0] if node.args else None
        if isinstance(whole, Node) and whole in self.lists and is_layer_of(node, whole):
            return e.subscript(self.whole(whole), [self.whole(node.args[2])])
        declared = info(target)
        chosen = None if declared is None else self.dialect.variant(declared.name, named_arguments(node))
        if chosen is not None:
            given = named_arguments(node)
            return e.call(self.helper(chosen.function), [self.whole(given[name]) for name in chosen.operands])
        special = self.dialect.special(node)
        if special is not None:
            return e.call(self.helper(special[0]), [self.whole(operand) for operand in special[1]])
        printed = [self.print_argument(argument) for argument in node.args]
        keywords = [(name, self.print_argument(item)) for name, item in node.kwargs.items()]
        if target in self.dialect.pointwise and len(printed) == 1 and not keywords:
            return e.call(self.helper(self.dialect.pointwise[target]), printed)
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
