"""dce: what nobody reads goes; what writes stays.

Dead nodes, dead carried values, slices, invariants and stacked results of loops at any depth (a carried table that only
feeds itself too), slot and weight placeholders of step graphs that nothing reads, weights that no graph takes, and
candidate or pending slots that no graph reads, with their updates. Inputs and results of steps are the ABI and stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch.fx import GraphModule

from specc.ir.build import output_values
from specc.ir.clone import clone
from specc.ir.edit import finish, modules
from specc.ir.prune import prune
from specc.manager import ALL_PROPERTIES, Note, Pass, PassContext, PassResult
from specc.program import DecodeProgram, input_ports, output_ports

NAME = "dce"


def eliminate_dead_code(module: GraphModule) -> GraphModule:
    """A copy of any graph module without dead code; its own inputs and outputs stay."""
    made = clone(module)
    prune(made)
    return finish(made)


def _drop_placeholders(module: GraphModule) -> bool:
    """Erase slot and weight placeholders of a step graph that have no reader."""
    dead = [node for key, node in input_ports(module).items() if not key.startswith("input:") and not node.users]
    for node in dead:
        module.graph.erase_node(node)
    return bool(dead)


def _drop_updates(module: GraphModule, slots: frozenset[str]) -> bool:
    """Remove the outputs of a step graph that are bound to these slots."""
    ports, values, output = output_ports(module), output_values(module), module.graph.output_node()
    kept = [place for place, port in enumerate(ports) if not (port.kind == "slot" and port.name in slots)]
    if len(kept) == len(ports):
        return False
    output.args = (tuple(values[place] for place in kept),)
    output.meta["ports"] = tuple(ports[place] for place in kept)
    output.meta["val"] = tuple(output.meta["val"][place] for place in kept)
    return True


def _dead_slots(program: DecodeProgram) -> frozenset[str]:
    read = {key for graph in program.graphs.values() for key in input_ports(graph)}
    return frozenset(
        slot.name
        for slot in program.slots.values()
        if slot.role in ("candidate", "pending") and slot.alias is None and f"slot:{slot.name}" not in read
    )


@dataclass(frozen=True, slots=True)
class DeadCode(Pass):
    """Pruning on every step graph, then on the program's declarations."""

    name: ClassVar[str] = NAME
    preserves: ClassVar[frozenset[str]] = ALL_PROPERTIES

    def run(self, program: DecodeProgram, ctx: PassContext) -> PassResult:
        """See Pass."""
        made = {name: clone(module) for name, module in program.graphs.items()}
        working = replace(program, graphs=made)
        touched: set[str] = set()
        while True:
            dead = _dead_slots(working)
            more = {
                name
                for name, module in made.items()
                if _drop_updates(module, dead) | prune(module) | _drop_placeholders(module)
            }
            slots = {name: slot for name, slot in working.slots.items() if name not in dead}
            working, touched = replace(working, slots=slots), touched | more
            if not more and not dead:
                break
        taken = {key for graph in made.values() for key in input_ports(graph)}
        weights = {name: weight for name, weight in program.weights.items() if f"weight:{name}" in taken}
        notes = [_shrunk(name, program.graphs[name], made[name]) for name in made if name in touched]
        notes += _gone("slots", program.slots, working.slots) + _gone("weights", program.weights, weights)
        if not notes:
            return PassResult(program, False)
        graphs = {name: finish(made[name]) if name in touched else old for name, old in program.graphs.items()}
        result = replace(program, graphs=graphs, slots=working.slots, weights=weights)
        return PassResult(result, True, tuple(notes))


def _shrunk(name: str, before: GraphModule, after: GraphModule) -> Note:
    counts = [sum(len(item.graph.nodes) for item in modules(module)) for module in (before, after)]
    return Note(NAME, name, f"{counts[0]} nodes, now {counts[1]}")


def _gone(what: str, before: Mapping[str, object], after: Mapping[str, object]) -> list[Note]:
    names = [name for name in before if name not in after]
    return [Note(NAME, "", f"{what} that nothing reads: {', '.join(names)}")] if names else []
