"""Proof that junk rows are seen by nobody: the numbers of a step on all small states that the program can reach.

A start or a count is a function of a row's own numbers: length, how much is pending, how many tokens the drafter has
yet to see, the lengths of a prompt. These functions are sums, minima and choices between them, without multiplication,
so what holds for all values up to SMALL holds beyond (a bend would have to lie there). They are taken out of the graphs
as formulas and evaluated on all combinations at once.

States: those with the INVARIANTS that the program keeps, which is checked first: each step takes a state that has them
to one that has them. A prompt comes before any other step, a commit behind a verify (which folds what is pending), and
steps that need a flush first find nothing pending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from specc.ir.build import output_node
from specc.ir.edit import is_loop
from specc.ir.port import Port
from specc.passes.legalize_ascend.common import Refused
from specc.program import DecodeProgram

SMALL = 3
Env = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Formula:
    """A number of a row: an op on formulas and constants, or (`target` None) what a port `kind:name` holds."""

    target: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def leaves(self) -> frozenset[str]:
        """The ports that it depends on."""
        if self.target is None:
            return frozenset(self.args)
        parts = [item for item in (*self.args, *self.kwargs.values()) if isinstance(item, Formula)]
        return frozenset[str]().union(*(item.leaves() for item in parts))

    def on(self, env: Env) -> Tensor:
        """Its values [cases]."""
        if self.target is None:
            return env[self.args[0]]
        args = [item.on(env) if isinstance(item, Formula) else item for item in self.args]
        kwargs = {name: item.on(env) if isinstance(item, Formula) else item for name, item in self.kwargs.items()}
        made: Tensor = self.target(*args, **kwargs)
        return made


def formula(node: Any) -> Formula:
    """The formula of an int64 or bool [B] of a step graph. Raises Refused where it is none of a row's own numbers."""
    if not isinstance(node, Node):
        raise Refused(f"{node!r} is the same for all rows")
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.dim() != 1 or value.dtype.is_floating_point or is_loop(node):
        raise Refused(f"it depends on `{node.name}`, which is not a number of each row")
    if node.op == "placeholder":
        port: Port | None = node.meta.get("port")
        if port is None:
            raise Refused(f"it depends on `{node.name}` inside a loop")
        return Formula(None, (f"{port.kind}:{port.name}",))
    if node.op != "call_function" or not callable(node.target):
        raise Refused(f"it depends on `{node.name}`")
    args = tuple(formula(item) if isinstance(item, Node) else item for item in node.args)
    kwargs = {name: formula(item) if isinstance(item, Node) else item for name, item in node.kwargs.items()}
    return Formula(node.target, args, kwargs)


def next_values(module: GraphModule) -> dict[str, Formula | None]:
    """What a step makes of the slots that it returns, where that is a formula (None: anything)."""
    output = output_node(module)
    values: Any = output.args[0]
    found: dict[str, Formula | None] = {}
    for port, value in zip(output.meta["ports"], values, strict=True):
        if port.kind == "slot":
            try:
                found[f"slot:{port.name}"] = formula(value)
            except Refused:
                found[f"slot:{port.name}"] = None
    return found


@dataclass(frozen=True, slots=True)
class Write:
    """One scatter: where it starts, what of it counts, and (start, count) of the groups in the value form."""

    step: str
    slot: str
    start: Formula
    counts: tuple[Formula, ...]
    groups: tuple[tuple[Formula, Formula | None], ...]

    @property
    def whole(self) -> bool:
        """Whether all of its rows are counted: none of them are candidates."""
        return all(count is not None for _, count in self.groups)

    def counted(self, env: Env) -> Tensor:
        """How many rows count."""
        total = torch.zeros_like(env["slot:length"])
        for count in self.counts:
            total = total + count.on(env)
        return total


@dataclass(frozen=True, slots=True)
class Invariant:
    """Something that every state between steps has."""

    text: str
    slots: tuple[str, ...]
    holds: Callable[..., Tensor]


INVARIANTS = (
    Invariant(
        "what is pending ends at `length`",
        ("slot:length", "slot:pending_length", "slot:pending_emitted"),
        lambda length, start, count: (count == 0) | (start + count == length),
    ),
    Invariant(
        "the drafter has missed no more tokens than there are",
        ("slot:length", "slot:recent_count"),
        lambda length, recent: (recent <= length) & ((recent >= 1) | (length == 0)),
    ),
)


class Machine:
    """The numbers of a program's states: all small ones, and where each step takes them."""

    def __init__(self, program: DecodeProgram, writes: Sequence[Write]) -> None:
        self.program, self.writes = program, writes
        self.next = {step: next_values(module) for step, module in program.graphs.items()}
        known = {f"slot:{name}" for name in program.slots}
        self.invariants = [item for item in INVARIANTS if known.issuperset(item.slots)]
        wanted = {"slot:length"} | {slot for item in self.invariants for slot in item.slots}
        wanted = wanted.union(*(write.start.leaves() for write in writes))
        for made in [made for later in self.next.values() for made in (later.get(slot) for slot in set(wanted))]:
            wanted |= frozenset() if made is None else made.leaves()
        wanted = wanted.union(*(_leaves(write) for write in writes))
        self.ports = sorted(wanted)

    def cases(self, step: str) -> dict[str, Tensor]:
        """All small values of the ports, where the invariants hold and the step may be called."""
        rows = torch.tensor(list(product(*(self._domain(port) for port in self.ports))))
        env = {
            port: rows[:, place].bool() if self._is_bool(port) else rows[:, place]
            for place, port in enumerate(self.ports)
        }
        kept = self.allowed(step, env)
        for item in self.invariants:
            kept &= item.holds(*(env[slot] for slot in item.slots))
        return {port: value[kept] for port, value in env.items()}

    def allowed(self, step: str, env: Env) -> Tensor:
        """Where the step may be called."""
        allowed = torch.ones_like(env["slot:length"], dtype=torch.bool)
        if step not in ("prefill", "flush"):
            allowed &= env["slot:length"] >= 1
        cleared = (*self.program.attributes.get("flush_first", ()), "commit")  # commit follows a verify
        if step in cleared and "slot:pending_emitted" in env:
            allowed &= env["slot:pending_emitted"] == 0
        return allowed

    def after(self, step: str, env: Env, slots: frozenset[str]) -> dict[str, Tensor]:
        """The state that the step leaves, as to these slots. Raises Refused where one of them becomes anything."""
        made = dict(env)
        for slot, value in self.next[step].items():
            if slot in slots and slot in env:
                if value is None:
                    raise Refused(f"what {step} makes of `{slot}` is not known beforehand")
                made[slot] = value.on(env)
        return made

    def valid(self, cache: str, env: Env, step: str = "") -> Tensor:
        """How many rows the next step may take as valid: up to the last start of a scatter of which rows count.

        A step that counts no row of a sequence (no prompt, finished) uses nothing of what it reads there. `env` is what
        `step` leaves: other slots that it returns may have any value then.
        """
        settled = _slots_of(self, cache)
        open_slots = frozenset(self.next[step]) - settled if step else frozenset()
        found = torch.full_like(env["slot:length"], -1)
        for write in self.writes:
            if write.slot == cache:
                allowed = self.allowed(write.step, env)
                for inputs in self._inputs(_leaves(write), env, open_slots):
                    here = {**env, **inputs}
                    counted = write.counted(here) > 0 if write.whole else torch.ones_like(allowed)
                    start = torch.maximum(found, write.start.on(here))
                    found = torch.where(allowed & counted, start, found)
        return found

    def _inputs(self, leaves: frozenset[str], env: Env, free: frozenset[str]) -> Iterator[dict[str, Tensor]]:
        names = sorted(leaf for leaf in leaves if leaf.startswith("input:") or leaf in free)
        for values in product(*(self._domain(name) for name in names)):
            yield {
                name: torch.full_like(env[name], value, dtype=env[name].dtype)
                for name, value in zip(names, values, strict=True)
            }

    def _domain(self, port: str) -> Sequence[int]:
        return (0, 1) if self._is_bool(port) else range(SMALL + 1)

    def _is_bool(self, port: str) -> bool:
        kind, _, name = port.partition(":")
        if kind == "slot":
            return self.program.slots[name].dtype == torch.bool
        return any(
            node.meta.get("port") == Port("input", name) and node.meta["val"].dtype == torch.bool
            for module in self.program.graphs.values()
            for node in module.graph.nodes
        )


def _leaves(write: Write) -> frozenset[str]:
    formulas = [write.start, *write.counts, *(item for group in write.groups for item in group if item is not None)]
    return frozenset[str]().union(*(item.leaves() for item in formulas))


def prove(program: DecodeProgram, writes: Sequence[Write]) -> None:
    """Raises Refused with a state for which one of the conditions does not hold."""
    machine = Machine(program, writes)
    for step in program.graphs:
        env = machine.cases(step)
        for item in machine.invariants:
            later = machine.after(step, env, frozenset(item.slots))
            holds = item.holds(*(later[slot] for slot in item.slots))
            _demand(holds, env, f"{step} leaves a state without the property that {item.text}")
        for write in writes:
            if write.step == step:
                _aligned(write, env)
                _hidden(machine, write, env)
        _still(machine, step, env)


def _aligned(write: Write, env: Env) -> None:
    """Condition 1: each group stands where the value form has it, or counts nothing."""
    place = write.start.on(env)
    for start, count in write.groups:
        if count is None:
            _demand(place == start.on(env), env, f"{write.step}: new rows of `{write.slot}` are not where they belong")
            continue
        fits = (count.on(env) == 0) | (place == start.on(env))
        _demand(fits, env, f"{write.step}: rows of `{write.slot}` are not where they belong")
        place = place + count.on(env)


def _hidden(machine: Machine, write: Write, env: Env) -> None:
    """Condition 2: junk begins at or behind what anyone takes as valid afterwards."""
    end = write.start.on(env) + write.counted(env)
    later = machine.after(write.step, env, _slots_of(machine, write.slot))
    hidden = machine.valid(write.slot, later, write.step) <= end
    _demand(hidden, env, f"{write.step} leaves rows of `{write.slot}` that do not count where they are seen")


def _still(machine: Machine, step: str, env: Env) -> None:
    """Condition 3: a step without a scatter makes no rows valid.

    Not asked of a drafter's caches: `draft` writes the rows that `commit` counts.
    """
    written = {write.slot for write in machine.writes if write.step == step}
    own = {write.slot for write in machine.writes if write.step == "draft"}
    for cache in sorted({write.slot for write in machine.writes} - written - own):
        later = machine.after(step, env, _slots_of(machine, cache))
        allowed = machine.valid(cache, later, step) <= machine.valid(cache, env)
        _demand(allowed, env, f"{step} makes rows of `{cache}` valid that nothing wrote")


def _slots_of(machine: Machine, cache: str) -> frozenset[str]:
    """The slots on which it depends where the rows of a cache begin, and which steps may be called."""
    leaves = [write.start.leaves() for write in machine.writes if write.slot == cache]
    return frozenset({"slot:length", "slot:pending_emitted"}).union(*leaves)


def _demand(holds: Tensor, env: Env, message: str) -> None:
    """Raises Refused with the first state where it does not hold."""
    wrong = (~holds).nonzero()
    if len(wrong):
        state = ", ".join(f"{port.partition(':')[2]} = {value[wrong[0, 0]].item()}" for port, value in env.items())
        raise Refused(f"{message} (for {state})")
