"""dce: what nobody reads goes; what writes stays.

Dead nodes, dead carried values, slices, invariants and stacked results of loops at any depth (a carried table that only
feeds itself too), slot and weight placeholders of step graphs that nothing reads, weights that no graph takes, and
candidate or pending slots that no graph reads, with their updates. Inputs and results of steps are the ABI and stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch.fx import GraphModule

from specc.ir.build import output_values
from specc.ir.clone import clone
from specc.ir.edit import finish
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
        notes: list[Note] = []
        changed = False
        while True:
            smaller, more = self._once(program)
            if not more:
                return PassResult(program, changed, tuple(notes))
            program, changed = smaller, True
            notes += more

    def _once(self, program: DecodeProgram) -> tuple[DecodeProgram, list[Note]]:
        notes: list[Note] = []
        graphs: dict[str, GraphModule] = {}
        dead = _dead_slots(program)
        for name, module in program.graphs.items():
            made = clone(module)
            before = len(made.graph.nodes)
            dropped = _drop_updates(made, dead)
            if prune(made) | _drop_placeholders(made) | dropped:
                graphs[name] = finish(made)
                notes.append(Note(NAME, name, f"{before} nodes at the top level, now {len(made.graph.nodes)}"))
        program = program.with_graphs(**graphs)
        if dead:
            notes.append(Note(NAME, "", f"slots that nothing reads: {', '.join(sorted(dead))}"))
            program = replace(program, slots={key: slot for key, slot in program.slots.items() if key not in dead})
        taken = {key for graph in program.graphs.values() for key in input_ports(graph)}
        unused = sorted(name for name in program.weights if f"weight:{name}" not in taken)
        if unused:
            notes.append(Note(NAME, "", f"weights that nothing reads: {', '.join(unused)}"))
            weights = {name: weight for name, weight in program.weights.items() if name not in unused}
            program = replace(program, weights=weights)
        return program, notes
