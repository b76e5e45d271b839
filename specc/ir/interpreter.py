"""Runs graphs with real tensors: the reference semantics of every stage, and the place where checks hook in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.ir.dims import BATCH
from specc.ir.edit import modules
from specc.ir.effects import writes_an_argument
from specc.ir.loop import loop, run_loop
from specc.ir.strict import IndexRangeError, StrictMode, check_indices
from specc.ir.types import body_of
from specc.program import DecodeProgram, output_ports

__all__ = ["Event", "IndexRangeError", "Interpreter", "Poison", "init_state", "poison", "run_step", "writes_in_place"]

POISON_VALUE = 1e30
State = Mapping[str, torch.Tensor]
Weights = Mapping[str, torch.Tensor | Sequence[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Event:
    """One executed node. `trips` are the iteration numbers of the loops around it, outermost first."""

    node: Node
    trips: tuple[int, ...]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    value: Any


Hook = Callable[[Event], Any]


@dataclass(frozen=True, slots=True)
class Poison:
    """`node.meta["poison"]`: rows [start, stop) of dim `dim` of this node's value are never read (pad, dummy)."""

    dim: int
    start: int
    stop: int


def poison(value: torch.Tensor, where: Poison) -> torch.Tensor:
    """A copy of `value` with those rows at ±1e30 (large finite in small dtypes; NaN would leak through 0 * NaN)."""
    out = value.clone()
    rows = out.narrow(where.dim, where.start, where.stop - where.start)
    if value.dtype == torch.bool:
        rows.fill_(True)
        return out
    limits = torch.finfo(value.dtype) if value.dtype.is_floating_point else torch.iinfo(value.dtype)
    size = min(POISON_VALUE, limits.max / 4)
    sign = torch.ones(rows.numel(), dtype=torch.float64, device=value.device)
    sign[1::2] = -1
    rows.copy_((sign * size).reshape(rows.shape))
    return out


class Interpreter:
    """Executes a GraphModule node by node, loop bodies included; `run` is a plain function of its arguments.

    strict: raise IndexRangeError for any index operand outside [0, size). poison: overwrite the rows that nodes declare
    never read (`Poison`). hooks: called after every node with an Event, in order; a result that is not None replaces
    the node's value. Works on any FX graph; ops that write do so on the tensors given.
    """

    def __init__(
        self, module: GraphModule, *, strict: bool = False, poison: bool = False, hooks: Sequence[Hook] = ()
    ) -> None:
        self.module = module
        self.strict = strict
        self.poison = poison
        self.hooks = tuple(hooks)

    def run(self, *args: Any) -> Any:
        """The module's outputs for these placeholders, in order."""
        with torch.no_grad():
            return self._block(self.module, args, ())

    def _block(self, module: GraphModule, args: Sequence[Any], trips: tuple[int, ...]) -> Any:
        values: dict[Node, Any] = {}
        inputs = iter(args)
        for node in module.graph.nodes:
            if node.op == "output":
                return _fetch(node.args[0], values)
            if node.op == "placeholder":
                operands, named = (), {}
                value = next(inputs, node.args[0] if node.args else None)
            else:
                operands, named = _fetch(node.args, values), _fetch(node.kwargs, values)
                value = self._node(module, node, operands, named, trips)
            values[node] = self._observe(node, trips, operands, named, value) if self.hooks or self.poison else value
        raise AssertionError("a graph ends with an output node")

    def _observe(self, node: Node, trips: tuple[int, ...], args: Any, kwargs: Any, value: Any) -> Any:
        if self.poison and "poison" in node.meta:
            value = poison(value, node.meta["poison"])
        for hook in self.hooks:
            replaced = hook(Event(node, trips, args, kwargs, value))
            value = value if replaced is None else replaced
        return value

    def _node(self, module: GraphModule, node: Node, args: Any, kwargs: Any, trips: tuple[int, ...]) -> Any:
        if node.op == "get_attr":
            value: Any = module
            for part in str(node.target).split("."):
                value = getattr(value, part)
            return value
        if node.target is loop:
            axis, _, trip, carried, sliced, invariant = args
            body = body_of(module, node)
            return run_loop(
                axis,
                lambda index, *rest: self._block(body, (index, *rest), (*trips, index)),
                trip,
                carried,
                sliced,
                invariant,
            )
        if isinstance(node.target, torch._ops.OpOverload):
            if self.strict:
                check_indices(node.target, args, kwargs, node.name)
            return node.target(*args, **kwargs)
        if not self.strict:
            return _call(module, node, args, kwargs)
        with StrictMode(node.name):
            return _call(module, node, args, kwargs)


def _call(module: GraphModule, node: Node, args: Any, kwargs: Any) -> Any:
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    if node.op == "call_module":
        return module.get_submodule(str(node.target))(*args, **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def _fetch(argument: Any, values: Mapping[Node, Any]) -> Any:
    if isinstance(argument, Node):
        return values[argument]
    if isinstance(argument, tuple):
        return tuple(_fetch(item, values) for item in argument)
    if isinstance(argument, list):
        return [_fetch(item, values) for item in argument]
    if isinstance(argument, Mapping):
        return {key: _fetch(item, values) for key, item in argument.items()}
    if isinstance(argument, slice):
        return slice(*(_fetch(item, values) for item in (argument.start, argument.stop, argument.step)))
    return argument


def writes_in_place(module: GraphModule) -> bool:
    """True where an op of the graph or of a loop body writes one of its operands."""
    return any(writes_an_argument(node.target) for item in modules(module) for node in item.graph.nodes)


def init_state(program: DecodeProgram, batch: int, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
    """Every stored slot at its initial value, for `batch` rows."""
    state = {}
    for slot in program.slots.values():
        if slot.alias is None:
            shape = [size // BATCH * batch if size and size % BATCH == 0 else size for size in slot.shape]
            state[slot.name] = torch.full(shape, slot.fill, dtype=slot.dtype, device=device)
    return state


def run_step(
    program: DecodeProgram,
    step: str,
    state: State,
    weights: Weights,
    inputs: Mapping[str, torch.Tensor],
    *,
    strict: bool = False,
    poison: bool = False,
    hooks: Sequence[Hook] = (),
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """(updated slots, results) of one step graph. The caller's tensors stay as they are, in mutable programs too.

    `weights` maps names to tensors, or sequences of one tensor per layer. Raises ValueError for a missing operand,
    IndexRangeError in strict mode.
    """
    module = program.graphs[step]
    mutable = writes_in_place(module)
    slots: dict[str, torch.Tensor] = {}
    args: list[Any] = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            port = node.meta["port"]
            group: Mapping[str, Any] = {"slot": state, "weight": weights, "input": inputs}[port.kind]
            if port.name not in group:
                raise ValueError(f"step `{step}` needs {port.kind} `{port.name}`")
            value = group[port.name]
            if port.kind == "slot" and mutable:
                value = slots[port.name] = value.clone()
            args.append(tuple(value) if isinstance(value, (list, tuple)) else value)
    values = Interpreter(module, strict=strict, poison=poison, hooks=hooks).run(*args)
    updates, results = dict(slots), dict[str, torch.Tensor]()
    for port, value in zip(output_ports(module), values, strict=True):
        (updates if port.kind == "slot" else results)[port.name] = value
    return updates, results
