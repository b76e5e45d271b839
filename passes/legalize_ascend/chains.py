"""What happens to one layer's cache in one graph: who reads it, what is written to it, in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node

from specc.ir import ops
from specc.ir.build import output_node
from specc.ir.edit import is_loop, loop_parts
from specc.ir.port import Port
from specc.ir.scope import named_arguments
from specc.passes.legalize_ascend.common import At, Place, Refused, aten
from specc.passes.legalize_ascend.loops import stacked_value
from specc.program import DecodeProgram

ATTENTION = (ops.tree_attention, ops.causal_attention)
WRITES = (ops.append_rows, ops.commit_path)


def slot_of(node: Any) -> str | None:
    """The slot that a placeholder of a step graph is bound to."""
    if isinstance(node, Node) and node.op == "placeholder" and "port" in node.meta:
        port: Port = node.meta["port"]
        return port.name if port.kind == "slot" else None
    return None


def slot_behind(at: At) -> str | None:
    """The slot whose layer a value is a later version of: through slices, results of loops, selections and writes."""
    node, place = at.node, at.place
    while isinstance(node, Node):
        if node.op == "placeholder":
            if place.loop is None:
                return slot_of(node)
            parts, inside = place.parts, (*place.parts.sliced_inside, *place.parts.invariant_inside)
            if node not in inside:
                return None
            node = (*parts.sliced, *parts.invariant)[inside.index(node)]
            assert place.parent is not None
            place = place.parent
        elif node.target in (*WRITES, ops.npu_scatter_update, aten.select.int, aten.unsqueeze.default):
            node = node.args[0]
        elif isinstance(node.args[0], Node) and is_loop(node.args[0]):
            loop = node.args[0]
            place, node = Place(loop_parts(loop).body, loop, place), stacked_value(loop_parts(loop), node)
        else:
            return None
    return None


def cache_slots(program: DecodeProgram) -> frozenset[str]:
    """The slots that attention reads in any graph."""
    found: set[str] = set()
    for module in program.graphs.values():
        for place in Place(module).walk():
            for node in place.module.graph.nodes:
                if node.target in ATTENTION:
                    arguments = named_arguments(node)
                    found |= {slot_behind(At(place, arguments[name])) or "" for name in ("k_cache", "v_cache")}
    return frozenset(found - {""})


@dataclass(frozen=True, slots=True)
class Source:
    """Rows that a step puts into a cache: `rows` (through `path`, if there is one) from `start` on.

    `count` None: all of them, to be seen by this step's attention only (candidates). start and count stand wherever
    they are computed.
    """

    rows: Node
    path: At | None
    start: At
    count: At | None


@dataclass(slots=True)
class Chain:
    """One layer's cache in one graph. `root` is its value as the graph finds it, `versions` the root and the writes."""

    place: Place
    slot: str
    root: Node
    versions: list[Node]
    attentions: list[Node] = field(default_factory=list)

    def sources(self) -> list[Source]:
        """What the step writes, in order. Raises Refused where an attention's new rows go elsewhere."""
        found = []
        for write in self.versions[1:]:
            given = named_arguments(write)
            path = given["path"] if write.target is ops.commit_path else None
            rows = given["candidate" if write.target is ops.commit_path else "rows"]
            start, count = (At(self.place, given[name]).resolved() for name in ("start", "count"))
            found.append(Source(rows, None if path is None else At(self.place, path).resolved(), start, count))
        for attention in self.attentions:
            found += self._own(attention, found)
        return found

    def _own(self, attention: Node, found: list[Source]) -> list[Source]:
        """The attention's own rows, where no write appends them behind what it sees."""
        given = named_arguments(attention)
        which = "k" if given["k_cache"] in self.versions else "v"
        version, rows = self.versions.index(given[f"{which}_cache"]), given[f"{which}_new"]
        length = At(self.place, given["length"]).resolved()
        if version < len(found):
            following = found[version]
            if following.rows is rows and following.path is None and following.start.node is length.node:
                return []
            raise Refused(f"the new rows of `{attention.name}` are not what is written behind those that it sees")
        return [Source(rows, None, length, None)]


def chains(place: Place, slots: frozenset[str]) -> Iterator[Chain]:
    """The chains that start in this graph: at slices of cache slots, or selections of a step graph's own."""
    for node in list(place.module.graph.nodes):
        slot = _root_slot(place, node)
        if slot in slots:
            yield _follow(place, slot, node)


def _root_slot(place: Place, node: Node) -> str:
    if place.loop is None:
        selected = node.target is aten.select.int and node.args[1:] == (0, 0)
        return (slot_of(node.args[0]) or "") if selected else ""
    parts = place.parts
    if place.parent is None or place.parent.loop is not None or node not in parts.sliced_inside:
        return ""
    return slot_of(parts.sliced[parts.sliced_inside.index(node)]) or ""


def _follow(place: Place, slot: str, root: Node) -> Chain:
    chain = Chain(place, slot, root, [root])
    output = output_node(place.module)
    order = {node: number for number, node in enumerate(place.module.graph.nodes)}
    while True:
        version = chain.versions[-1]
        following = []
        for user in sorted(version.users, key=order.__getitem__):
            if user.target in WRITES and user.args[0] is version:
                following.append(user)
            elif user.target in ATTENTION and user.args[1:3].count(version) == 1:
                chain.attentions.append(user)
            elif user is not output and not _handed_on(place, version, user):
                raise Refused(f"`{user.name}` reads the cache `{slot}`")
        if not following:
            return chain
        if len(following) > 1:
            raise Refused(f"`{following[0].name}` and `{following[1].name}` both write to the cache `{slot}`")
        chain.versions.append(following[0])


def _handed_on(place: Place, version: Node, user: Node) -> bool:
    """True where a version at the top of a step is stacked, or handed to the loop over levels."""
    return (
        place.loop is None and (user.target is aten.unsqueeze.default or is_loop(user)) and version.op != "placeholder"
    )
