"""Prints a loop node of a step graph as a `for` statement."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch.fx import GraphModule, Node

from specc.backends.printing import expression as e
from specc.backends.printing.expression import Expr
from specc.backends.printing.liveness import getitem_users, is_impure, loop_body, output_node
from specc.backends.printing.naming import mentions, wanted_name
from specc.backends.printing.regions import RegionCall
from specc.ir.loop import loop

if TYPE_CHECKING:
    from specc.backends.printing.printer import GraphPrinter


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
        inner = outer.nested()
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
        if self._is_tuple(0) or self.sliced[0] in self.outer.lists:
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
        plan = self.live.plan
        found: dict[Node, str] = {}
        wanted_values = [self.values[position] for position in self.wanted]
        for position, name in names.items():
            value, place = self.values[position], self.carried_places[position]
            if not isinstance(value, Node) or value.op != "call_function" or value in found:
                continue
            source = value.args[0] if value.target is operator.getitem else None
            if isinstance(source, Node) and (source.target is loop or isinstance(source.meta.get("val"), tuple)):
                continue
            later = [user for user in place.users if user in self.live.nodes and plan.place[user] > plan.place[value]]
            regions = [unit for unit in plan.order[plan.place[value] + 1 :] if isinstance(unit, RegionCall)]
            later += [place for unit in regions if place in unit.inputs]
            if not later and not any(item is place for item in wanted_values):
                found[value] = name
        return found

    def _finish_body(
        self, inner: GraphPrinter, printed: Sequence[Any], names: Mapping[int, str], parts: Mapping[int, str]
    ) -> None:
        """Append the stacked values, then assign the carried ones (at once, where one reads another)."""
        users = getitem_users(self.node) or {}
        for position, name in parts.items():
            listed = self.outer.dialect.listed and any(item in self.outer.lists for item in users.get(position, ()))
            text = f"{printed[position].at(e.ATOM)}.contiguous()" if listed else printed[position].text
            inner.emit(f"{name}.append({text})")
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
        users = getitem_users(self.node) or {}
        for position, name in names.items():
            results[position] = Expr(name)
        for position, name in parts.items():
            if any(item in self.outer.lists for item in users.get(position, ())):
                results[position] = Expr(name)
                continue
            joined = f"torch.cat({name}, dim=1)" if self.axis == "token" else f"torch.stack({name})"
            results[position] = Expr(joined, e.ATOM, 1)
        self.outer.results[self.node] = results
        if getitem_users(self.node) is None:
            everything = "".join(f"{item.text}, " for item in results if item is not None)
            self.outer.env[self.node] = Expr(f"({everything})", e.ATOM, 1)
