"""What the parts of legalize-ascend share: reasons, notes, and values of loop bodies seen from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from specc.ir.edit import Editor, LoopParts, add_invariant, is_loop, loop_parts
from specc.ir.types import infer
from specc.manager import Note
from specc.program import DecodeProgram

aten = torch.ops.aten
NAME = "legalize-ascend"


class Refused(Exception):
    """A condition does not hold; the message is the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A graph: a step graph, or the body of `loop`, which stands in `parent`."""

    module: GraphModule
    loop: Node | None = None
    parent: Place | None = None

    @property
    def depth(self) -> int:
        """The number of loops around."""
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def parts(self) -> LoopParts:
        """The loop that this is the body of, as it is now."""
        assert self.loop is not None
        return loop_parts(self.loop)

    def inner(self) -> Iterator[Place]:
        """The bodies of the loops that stand directly here."""
        for node in list(self.module.graph.nodes):
            if is_loop(node):
                yield Place(loop_parts(node).body, node, self)

    def walk(self) -> Iterator[Place]:
        """This place and all inside it, outer ones first."""
        yield self
        for place in self.inner():
            yield from place.walk()


@dataclass(frozen=True, slots=True)
class At:
    """A node, or a constant, and the graph that it stands in."""

    place: Place
    node: Any

    def resolved(self) -> At:
        """Followed outward through the invariants of loops."""
        at = self
        while at.place.loop is not None and isinstance(at.node, Node) and at.node.op == "placeholder":
            parts = at.place.parts
            if at.node not in parts.invariant_inside:
                break
            assert at.place.parent is not None
            at = At(at.place.parent, parts.invariant[parts.invariant_inside.index(at.node)])
        return at


@dataclass(slots=True)
class Plan:
    """One run of the pass: the program that it was given, notes, and the values made so far outside of loops."""

    program: DecodeProgram
    caches: frozenset[str]
    capacity: int
    notes: list[Note] = field(default_factory=list)
    made: dict[tuple[Any, ...], At] = field(default_factory=dict)
    writes: list[Any] = field(default_factory=list)

    def note(self, graph: str, message: str, fired: bool = True, keys: Sequence[str] = ()) -> None:
        """Record what was done, or why not (once)."""
        note = Note(NAME, graph, message, fired, tuple(keys))
        if note not in self.notes:
            self.notes.append(note)

    def outside(self, key: str, operands: Sequence[At], make: Callable[..., Node], *constants: Any) -> At:
        """`make(editor, *operands, *constants)` as far outside of loops as its operands allow, once for equal ones."""
        found = [item.resolved() for item in operands]
        full = (key, *((id(item.place.module), item.node) for item in found), *constants)
        if full not in self.made:
            place = max((item.place for item in found), key=lambda item: item.depth)
            nodes = [self.inside(item, place) for item in found]
            self.made[full] = At(place, _after(place.module, nodes, lambda edit: make(edit, *nodes, *constants)))
        return self.made[full]

    def inside(self, value: At, place: Place) -> Any:
        """The value as an operand of nodes at `place`: handed in as an invariant by every loop between."""
        value = value.resolved()
        if value.place.module is place.module or not isinstance(value.node, Node):
            return value.node
        if place.parent is None:
            raise Refused(f"`{value.node.name}` is computed inside a loop")
        outer = self.inside(value, place.parent)
        parts = place.parts
        for operand, inside in zip(parts.invariant, parts.invariant_inside, strict=True):
            if operand is outer:
                return inside
        assert place.loop is not None
        return add_invariant(place.loop, outer, outer.name)


def _after(module: GraphModule, nodes: Sequence[Any], make: Callable[[Editor], Node]) -> Node:
    """`make(editor)` behind the last of the nodes (and behind all placeholders)."""
    order = {node: number for number, node in enumerate(module.graph.nodes)}
    first = next(node for node in module.graph.nodes if node.op != "placeholder")
    known = [node for node in nodes if isinstance(node, Node)]
    last = max(known, key=order.__getitem__)
    following = first if order[last] < order[first] else last.next
    editor = Editor(module, NAME)
    with editor.before(following, *known):
        return make(editor)


def become(node: Node, target: Callable[..., Any], *args: Any) -> None:
    """Another op in the node's place, under its name."""
    node.target, node.args, node.kwargs = target, args, {}
    node.meta["val"] = infer(target, args, {})
    node.meta["passes"] = tuple(dict.fromkeys((*node.meta.get("passes", ()), NAME)))


def walk_loops(module: GraphModule, axis: str) -> list[Node]:
    """The loops of this axis that stand directly in the module."""
    return [node for node in module.graph.nodes if is_loop(node) and node.args[0] == axis]


def needed_before(module: GraphModule, wanted: Sequence[Any], barrier: Node) -> list[Node]:
    """What must move in front of `barrier` so that `wanted` stand there, in order. Raises Refused where it can't."""
    order = {item: number for number, item in enumerate(module.graph.nodes)}
    moved: set[Node] = set()
    stack = [item for item in wanted if isinstance(item, Node)]
    while stack:
        item = stack.pop()
        if item is barrier:
            raise Refused(f"it depends on `{barrier.name}`")
        if item in moved or order[item] < order[barrier]:
            continue
        moved.add(item)
        stack.extend(item.all_input_nodes)
    return sorted(moved, key=order.__getitem__)


def hoist(module: GraphModule, wanted: Sequence[Any], barrier: Node) -> None:
    """Move `wanted` and what they depend on in front of `barrier`. Raises Refused before anything is moved."""
    for item in needed_before(module, wanted, barrier):
        barrier.prepend(item)
