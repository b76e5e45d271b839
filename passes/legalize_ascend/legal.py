"""NPU_LEGAL as a check of a program: one scatter per cache and graph, and nothing else that reads the cache."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.edit import is_loop, loop_parts
from specc.manager import predicate
from specc.passes.legalize_ascend.chains import ATTENTION, WRITES, slot_behind, slot_of
from specc.passes.legalize_ascend.common import At, Place, aten
from specc.program import NPU_LEGAL, DecodeProgram, output_ports


@predicate(NPU_LEGAL)
def illegal(program: DecodeProgram) -> list[str]:
    """Why the program is not NPU_LEGAL."""
    reasons: list[str] = []
    caches = written_slots(program)
    for step, module in program.graphs.items():
        reasons += [f"{step}: {text}" for text in _ops_left(Place(module), caches)]
        for node in module.graph.nodes:
            if slot_of(node) in caches:
                reasons += [f"{step}: {text}" for text in _readers(module, node, slot_of(node) or "")]
    return reasons


def written_slots(program: DecodeProgram) -> frozenset[str]:
    """The slots that some graph scatters rows into."""
    found: set[str] = set()
    for module in program.graphs.values():
        for node in module.graph.nodes:
            name = slot_of(node)
            if name and any(_scatters(read, user) for read, user in _uses(node)):
                found.add(name)
    return frozenset(found)


def _scatters(read: Node, user: Node) -> bool:
    return user.target is ops.npu_scatter_update and user.args[0] is read


def _ops_left(top: Place, caches: frozenset[str]) -> list[str]:
    """Attention and writes of the value form, and scatters beyond the first of a cache."""
    found: list[str] = []
    written: set[str] = set()
    for place in top.walk():
        for node in place.module.graph.nodes:
            if node.target in ATTENTION:
                found.append(f"`{node.name}` is attention of the value form")
            if node.target not in (*WRITES, ops.npu_scatter_update):
                continue
            slot = slot_behind(At(place, node))
            if slot not in caches:
                continue  # a history of tokens, a list of pending factors
            if node.target in WRITES:
                found.append(f"`{node.name}` writes rows by count")
            elif slot in written:
                found.append(f"`{node.name}` writes to `{slot}` a second time")
            written.add(slot)
    return found


def _uses(node: Node) -> list[tuple[Node, Node]]:
    """(value, reader) of everything that reads a slot, each layer's slice followed into its loop."""
    found: list[tuple[Node, Node]] = []
    for user in node.users:
        if is_loop(user):
            parts = loop_parts(user)
            for operand, inside in zip(parts.operands, parts.inside, strict=True):
                if operand is node:
                    found += _uses(inside)
        elif user.target is aten.select.int:
            found += _uses(user)
        else:
            found.append((node, user))
    return found


def _readers(module: GraphModule, node: Node, name: str) -> list[str]:
    """Why the slot isn't read by exactly one scatter, whose result the graph returns."""
    uses = _uses(node)
    scatters = [user for read, user in uses if _scatters(read, user)]
    reasons = [f"`{user.name}` reads the cache `{name}` beside the scatter" for _, user in uses if user not in scatters]
    if len(scatters) != 1:
        reasons.append(f"{len(scatters)} scatters write to `{name}`")
    if not any(port.kind == "slot" and port.name == name for port in output_ports(module)):
        reasons.append(f"`{name}` is read, but not returned")
    return reasons
