"""Interval analysis of a graph module: for every integer node, an interval that holds all values it can take.

Abstract interpretation (Cousot and Cousot 1977) over FX graphs, by the rules of `rules` and `rules_move`. Loops:
the values carried by a loop with a short static trip count are followed iteration by iteration where they don't
settle at once, others are widened to a fixed point and narrowed again. Writes in place are handled by giving all
aliases of the written tensor one interval that joins everything ever written.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.ir.edit import LoopParts, is_loop, loop_parts
from specc.ir.op import info
from specc.ir.port import Port, ValueRange
from specc.ir.ranges import interval as iv
from specc.ir.ranges import rules_move, rules_specc  # noqa: F401  (they register rules)
from specc.ir.ranges.alias import hides_writes, written_groups, written_operands
from specc.ir.ranges.bounds import of_declared, of_size
from specc.ir.ranges.calls import Call, call_of, dtype_of, is_integral, value
from specc.ir.ranges.interval import EVERYTHING, Interval, exactly
from specc.ir.ranges.refine import ELEMENTWISE, MAX_DEPTH, Known, constraints
from specc.ir.ranges.rules import RULES, Value

Declared = Mapping[str, ValueRange | tuple[int, int]]
MAX_EXACT_TRIPS = 256
_SETTLE, _NARROW, _WRITE_ROUNDS = 3, 2, 4


class Ranges:
    """The result: `of(node)` for any node of the module or of a loop body in it.

    `outer` maps a body's placeholder to the operand outside; `declared` holds the inputs whose range was declared.
    """

    def __init__(
        self, values: Mapping[Node, Value], outer: Mapping[Node, Node], declared: frozenset[Node] = frozenset()
    ) -> None:
        self.values = values
        self.outer = outer
        self.declared = declared

    def of(self, argument: Any) -> Interval:
        """Interval of a node, number or bool; everything for what isn't an integer."""
        if isinstance(argument, Node):
            held = self.values.get(argument)
            return held if isinstance(held, Interval) else EVERYTHING
        return exactly(int(argument)) if isinstance(argument, int) else EVERYTHING


def analyse(module: GraphModule, ranges: Declared | None = None) -> Ranges:
    """Intervals of all integer nodes.

    `ranges` declares placeholders by name or by port (`slot:length`, `input:parent`); an undeclared integer input
    may be anything of its dtype. Nodes need recorded fake values for results that depend on sizes.
    """
    run = _Run(dict(ranges or {}))
    inputs = {node: run.declared(node) for node in module.graph.nodes if node.op == "placeholder"}
    run.graph(module, inputs)
    return Ranges(run.values, run.outer, frozenset(run.found))


class _Run:
    """One analysis. `values` is overwritten by each visit of a body; the last visit is over the loop's invariant."""

    def __init__(self, ranges: Declared) -> None:
        self.ranges = ranges
        self.values: dict[Node, Value] = {}
        self.outer: dict[Node, Node] = {}
        self.groups: dict[Node, int] = {}
        self.written: dict[int, Interval] = {}
        self.known: Known = {}
        self.found: set[Node] = set()
        self._grouped: set[GraphModule] = set()

    def declared(self, node: Node) -> Value:
        """The interval of a placeholder."""
        port = node.meta.get("port")
        keys = [node.name, str(node.target)]
        if isinstance(port, Port):
            keys = [f"{port.kind}:{port.name}", *keys]
        for key in keys:
            if key in self.ranges:
                self.found.add(node)
                return iv.declared(self.ranges[key])
        fake = value(node)
        if isinstance(fake, (tuple, list)):
            return tuple(iv.limits(dtype_of(item)) if is_integral(item) else None for item in fake)
        if isinstance(fake, torch.SymInt):
            return Interval(of_size(fake), of_size(fake))
        return iv.limits(dtype_of(node)) if is_integral(node) else None

    def graph(self, module: GraphModule, inputs: Mapping[Node, Value]) -> list[Value]:
        """Evaluate all nodes; returns the values of the outputs (a flat list)."""
        if module not in self._grouped:
            self._grouped.add(module)
            self.groups |= written_groups(module, len(self._grouped))
        for _ in range(_WRITE_ROUNDS):
            before = dict(self.written)
            results = self._once(module, inputs)
            if self.written == before:
                return results
        groups = {self.groups[node] for node in module.graph.nodes if node in self.groups}
        self.written |= dict.fromkeys(groups, EVERYTHING)
        return self._once(module, inputs)

    def _once(self, module: GraphModule, inputs: Mapping[Node, Value]) -> list[Value]:
        results: list[Value] = []
        for node in module.graph.nodes:
            if node.op == "output":
                results = [self.operand(item) for item in _flat(node.args[0])]
                continue
            held = inputs[node] if node.op == "placeholder" else self._node(module, node)
            self.values[node] = self._joined(node, held)
        return results

    def _joined(self, node: Node, held: Value) -> Value:
        """The value of a node whose storage is written: what all aliases hold at any time."""
        if node not in self.groups or not is_integral(node) or is_loop(node):
            return held
        group = self.groups[node]
        one = held if isinstance(held, Interval) else EVERYTHING
        self.written[group] = iv.join(self.written[group], one) if group in self.written else one
        return tuple(self.written[group] for _ in held) if isinstance(held, tuple) else self.written[group]

    def _node(self, module: GraphModule, node: Node) -> Value:
        if is_loop(node):
            return self._loop(loop_parts(node))
        fake = value(node)
        if isinstance(fake, torch.Tensor) and not is_integral(node):
            return None
        if node.op == "get_attr":
            return _constant(module, str(node.target))
        call = call_of(node)
        if call is not None and hides_writes(call):
            self._write(call)
        return EVERYTHING if call is None else self._call(call)

    def _write(self, call: Call) -> None:
        """What an op leaves in storage that it does not return: by its rule in the first operand that it writes, where
        it returns nothing at all, else anything of the dtype."""
        rule = RULES.get(call.name) if value(call.node) is None else None
        for place, operand in enumerate(written_operands(call)):
            if operand in self.groups and is_integral(operand):
                made = rule(call, self) if rule is not None and place == 0 else EVERYTHING
                held = iv.fit(made if isinstance(made, Interval) else EVERYTHING, dtype_of(operand))
                group = self.groups[operand]
                self.written[group] = iv.join(self.written[group], held) if group in self.written else held

    def _call(self, call: Call) -> Value:
        if call.node.target is operator.getitem and not isinstance(value(call.args[0]), torch.Tensor):
            held = self.operand(call.args[0])
            if isinstance(held, tuple) and isinstance(call.args[1], int):
                return held[call.args[1]] if -len(held) <= call.args[1] < len(held) else EVERYTHING
            return held if isinstance(held, Interval) and value(call.args[0]) is None else self._fit(call, EVERYTHING)
        if call.in_place and call.name in ("setitem", "delitem"):
            return None if call.node in self.groups else EVERYTHING
        found = RULES.get(call.name)
        result = _by_metadata(self, call) if found is None else found(call, self)
        return self._fit(call, result)

    def _fit(self, call: Call, result: Value) -> Value:
        fake = value(call.node)
        if isinstance(result, tuple):
            parts = fake if isinstance(fake, (tuple, list)) else [None] * len(result)
            return tuple(
                iv.fit(item if isinstance(item, Interval) else EVERYTHING, dtype_of(part))
                if is_integral(part)
                else None
                for item, part in zip(result, parts, strict=False)
            )
        if isinstance(fake, (tuple, list)):
            return tuple(iv.limits(dtype_of(part)) if is_integral(part) else None for part in fake)
        return iv.fit(result, dtype_of(call.node)) if isinstance(result, Interval) else None

    def operand(self, argument: Any) -> Value:
        """Value of an operand, tuples included."""
        if isinstance(argument, Node):
            return self.known[argument] if argument in self.known else self.values.get(argument)
        if isinstance(argument, (list, tuple)):
            return tuple(self.operand(item) for item in argument)
        return exactly(int(argument)) if isinstance(argument, int) else None

    def of(self, argument: Any) -> Interval:
        """Interval of an operand; everything where it isn't an integer (`Operands`)."""
        held = self.operand(argument)
        return held if isinstance(held, Interval) else EVERYTHING

    def condition(self, argument: Any, holds: bool, wanted: Any) -> Interval:
        """Interval of `wanted` where the bool `argument` is `holds` (`Operands`)."""
        known = {node: held for node, held in constraints(argument, holds, self.of).items() if node not in self.groups}
        if not known:
            return self.of(wanted)
        saved, self.known = self.known, {**self.known, **known}
        try:
            return self._under(wanted, MAX_DEPTH)
        finally:
            self.known = saved

    def _under(self, wanted: Any, depth: int) -> Interval:
        """Re-evaluate an elementwise expression with what is known."""
        if not isinstance(wanted, Node) or wanted in self.known or depth == 0:
            return self.of(wanted)
        call = call_of(wanted)
        if call is None or call.in_place or call.name not in ELEMENTWISE:
            return self.of(wanted)
        if not is_integral(wanted) or wanted in self.groups:
            return self.of(wanted)
        saved = self.known
        inner = {item: self._under(item, depth - 1) for item in wanted.all_input_nodes if is_integral(item)}
        self.known = {**saved, **inner}
        try:
            result = self._fit(call, RULES[call.name](call, self))
        finally:
            self.known = saved
        before = self.of(wanted)
        return iv.meet(before, result) if isinstance(result, Interval) else before

    def _loop(self, parts: LoopParts) -> Value:
        for placeholder, operand in zip(parts.inside, parts.operands, strict=True):
            if isinstance(operand, Node):
                self.outer[placeholder] = operand
        result = self._fixed_point(parts)
        self._written_inside(parts)
        return result

    def _written_inside(self, parts: LoopParts) -> None:
        """What a body writes into its operands is written into the operands outside."""
        for placeholder, operand in zip(parts.inside, parts.operands, strict=True):
            held = self.written.get(self.groups.get(placeholder, -1))
            if held is not None and isinstance(operand, Node) and operand in self.groups:
                group = self.groups[operand]
                self.written[group] = iv.join(self.written.get(group, held), held)

    def _fixed_point(self, parts: LoopParts) -> Value:
        start = [self.operand(item) for item in parts.carried]
        count = len(start)
        fixed = [_sliced(self.operand(item)) for item in parts.sliced]
        fixed += [self.operand(item) for item in parts.invariant]
        trip = iv.exactly(parts.trip) if parts.trip is not None else self._trip(parts)
        everywhere = iv.up_to(trip.high)

        def visit(state: Sequence[Value], index: Interval) -> list[Value]:
            values = [index, *state, *fixed]
            inside = [parts.index, *parts.inside]
            return self.graph(parts.body, dict(zip(inside, values, strict=True)))

        if parts.trip == 0:
            return (*start, *(EVERYTHING for _ in parts.stacked_out))
        state = list(start)
        for _ in range(_SETTLE):
            results = visit(state, everywhere)
            after = [_join(old, new) for old, new in zip(state, results[:count], strict=True)]
            if after == state:
                return tuple(results)
            state = after
        if parts.trip is not None and parts.trip <= MAX_EXACT_TRIPS:
            return self._unrolled(parts.trip, start, visit, everywhere)
        return self._widened(parts, start, visit, everywhere)

    def _unrolled(self, trip: int, start: list[Value], visit: Any, everywhere: Interval) -> Value:
        """Follow the carried values; then one visit over the join of all iterations types the body's nodes."""
        state, joined = list(start), list(start)
        for index in range(trip):
            state = visit(state, exactly(index))[: len(start)]
            if index + 1 < trip:
                joined = [_join(old, new) for old, new in zip(joined, state, strict=True)]
        results = visit(joined, everywhere)
        return (*state, *results[len(start) :])

    def _widened(self, parts: LoopParts, start: list[Value], visit: Any, everywhere: Interval) -> Value:
        state, count = list(start), len(start)
        steps = _literals(parts.body)
        while True:
            results = visit(state, everywhere)
            after = [_join(old, new) for old, new in zip(state, results[:count], strict=True)]
            if after == state:
                break
            state = [
                _widen(old, new, node, steps) for old, new, node in zip(state, after, parts.carried_inside, strict=True)
            ]
        for _ in range(_NARROW):
            state = [_join(old, new) for old, new in zip(start, results[:count], strict=True)]
            results = visit(state, everywhere)
        return tuple(results)

    def _trip(self, parts: LoopParts) -> Interval:
        fake = value(parts.sliced[0]) if parts.sliced else None
        if isinstance(fake, torch.Tensor):
            size = of_size(fake.shape[1 if parts.axis == "token" else 0])
            return Interval(size, size)
        return exactly(len(fake)) if isinstance(fake, (tuple, list)) else EVERYTHING


def _flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (list, tuple)) else [result]


def _join(old: Value, new: Value) -> Value:
    if isinstance(old, tuple) and isinstance(new, tuple):
        return tuple(_join(one, other) for one, other in zip(old, new, strict=True))
    if isinstance(old, Interval) and isinstance(new, Interval):
        return iv.join(old, new)
    return EVERYTHING if isinstance(old, Interval) else None


def _widen(old: Value, new: Value, node: Node, steps: Sequence[int]) -> Value:
    if not isinstance(old, Interval) or not isinstance(new, Interval):
        return new
    return iv.meet(iv.widen(old, new, steps), iv.limits(dtype_of(node)))


def _literals(body: GraphModule) -> list[int]:
    """The numbers that a body's ops mention: where growth is likely to stop."""
    found: set[int] = set()
    for node in body.graph.nodes:
        found.update(item for item in (*node.args, *node.kwargs.values()) if type(item) is int)
    return sorted(found)


def _sliced(held: Value) -> Value:
    """An element of a tuple of tensors, or a slice of one tensor."""
    if not isinstance(held, tuple):
        return held
    parts = [item for item in held if isinstance(item, Interval)]
    return iv.join_all(parts) if parts and len(parts) == len(held) else None


def _constant(module: GraphModule, path: str) -> Value:
    """Smallest and largest value of a tensor attribute."""
    held: Any = module
    for part in path.split("."):
        held = getattr(held, part)
    if not isinstance(held, torch.Tensor) or not is_integral_tensor(held) or held.numel() == 0:
        return None
    return iv.between(int(held.min()), int(held.max()))


def is_integral_tensor(tensor: torch.Tensor) -> bool:
    """Integer or bool elements."""
    return not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def _by_metadata(run: _Run, call: Call) -> Value:
    """Declared results of a specc op: `meta["ranges"](values, ranges)`, one (low, high) or None per result.

    `values` maps operand names to fake tensors and plain values, `ranges` the names of integer operands to
    (low, high) where both are plain numbers. Ends may be written with the symbolic sizes.
    """
    declaration = info(call.node.target)
    if declaration is None or "ranges" not in declaration.meta:
        return EVERYTHING
    names = [item.name for item in declaration.overload._schema.arguments]
    operands = dict(zip(names, call.args, strict=False)) | dict(call.kwargs)
    known = {name: run.of(item) for name, item in operands.items()}
    plain = {
        name: (held.low.constant, held.high.constant)
        for name, held in known.items()
        if held.low.constant is not None and held.high.constant is not None
    }
    results = declaration.meta["ranges"]({name: value(item) for name, item in operands.items()}, plain)
    made = tuple(None if item is None else Interval(of_declared(item[0]), of_declared(item[1])) for item in results)
    return made if len(made) > 1 else made[0]


__all__ = ["Declared", "Ranges", "analyse"]
