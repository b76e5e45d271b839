"""Which nodes of a graph go into which kernel: as few regions as the data flow, writes and sizes allow.

Nodes are taken in order and added to a region that holds an operand of theirs, or else to another of the same kind,
unless a path through something outside would then lead from the region back to itself. What turns out not to be
possible when a kernel is written (`Blocked`) is left out, and the graph is divided again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule, Node

from specc.backends.triton.regions.create import CREATE
from specc.backends.triton.regions.effects import orders, touched
from specc.backends.triton.regions.region import Blocked, Region, created_from, emit, is_free
from specc.backends.triton.regions.table import LAUNCHES, WORK
from specc.backends.triton.regions.writer import Kind
from specc.ir.dims import BATCH
from specc.ir.effects import flat_nodes

POLICIES = ("token", "batch")
MOST_OPERANDS = 96


@dataclass(slots=True, eq=False)
class Group:
    """A region while it grows, or one node outside (kind None)."""

    number: int
    kind: Kind | None
    nodes: list[Node] = field(default_factory=list)
    before: set[int] = field(default_factory=set)


def is_attached(node: Node) -> bool:
    """One of several results of a node that is work: it stands where that node stands."""
    source = node.args[0] if node.target is operator.getitem else None
    return isinstance(source, Node) and not is_free(source)


def anchors(values: object, *, printed: bool = False) -> Iterator[Node]:
    """What values depend on, free nodes followed: inputs, nodes that are work, and their single results.

    `printed`: free nodes are statements, which read the tensors that they take their sizes from.
    """
    for node in flat_nodes(values):
        if node.op == "call_function" and is_free(node) and not is_attached(node):
            sized = printed or node.target not in CREATE
            yield from anchors((node.args, node.kwargs) if sized else created_from(node), printed=printed)
        elif node.op != "get_attr":
            yield node


def owner(anchor: Node) -> Node:
    """The node that is work behind an anchor."""
    source = anchor.args[0] if is_attached(anchor) else anchor
    assert isinstance(source, Node)
    return source


def shown(node: Node) -> Node:
    """The node whose type says what rows a call has: the value that a write stores, a first result."""
    names = {"copy_": 1, "append_rows_": 1}
    name = getattr(node.target, "_schema", None) and node.target._schema.name.split("::")[1]  # type: ignore[union-attr]
    if name in names:
        value = node.args[names[name]]
        assert isinstance(value, Node)
        return value
    if isinstance(node.meta.get("val"), (tuple, list)):
        return next(iter(results(node)), node)
    return node


def results(node: Node) -> list[Node]:
    """The single results of a node that has several, or the node."""
    if isinstance(node.meta.get("val"), (tuple, list)):
        return [user for user in node.users if user.target is operator.getitem and user.users]
    return [node] if isinstance(node.meta.get("val"), torch.Tensor) and node.users else []


def items(node: Node) -> list[Node]:
    """The single results of a node that is a tuple."""
    is_tuple = isinstance(node.meta.get("val"), (tuple, list))
    return [user for user in node.users if user.target is operator.getitem] if is_tuple else []


class Partition:
    """One attempt to divide a graph."""

    def __init__(
        self,
        module: GraphModule,
        policy: str,
        blocked: dict[tuple[Node, str], str],
        limit: int,
        small: Callable[[Node], bool],
    ) -> None:
        self.module, self.policy, self.blocked, self.limit, self.small = module, policy, blocked, limit, small
        self.nodes = [node for node in module.graph.nodes if node.op == "call_function" and not is_free(node)]
        self.place = {node: number for number, node in enumerate(self.nodes)}
        self.touched = {node: touched(node) for node in self.nodes}
        self.orders = orders(self.touched)
        self.operands = {node: frozenset(anchors((node.args, node.kwargs))) for node in self.nodes}
        self.owners = {node: frozenset(map(owner, found)) for node, found in self.operands.items()}
        self.groups: list[Group] = []
        self.group_of: dict[Node, Group] = {}
        self.kinds: dict[Node, list[Kind]] = {}

    def run(self) -> None:
        """Give every node a group."""
        for node in self.nodes:
            kinds = self.possible(node)
            group = next((found for kind in kinds for found in self.candidates(node, kind)), None)
            if group is None:
                group = Group(len(self.groups), kinds[0] if kinds else None)
                self.groups.append(group)
            group.nodes.append(node)
            needed = self.behind(node, printed=group.kind is None)
            group.before |= {self.group_of[item].number for item in needed} - {group.number}
            self.group_of[node] = group

    def behind(self, node: Node, *, printed: bool = False) -> set[Node]:
        """The nodes that must run before this one."""
        needed = self.owners[node]
        if printed:
            needed = frozenset(owner(item) for item in anchors((node.args, node.kwargs), printed=True))
        return {item for item in needed | self.orders[node] if item in self.group_of}

    def possible(self, node: Node) -> list[Kind]:
        """Kinds of region that can hold the node, the preferred one first."""
        if node.target not in WORK:
            return []
        kinds = [kind for kind in self._kinds(node) if (node, kind.name) not in self.blocked]
        kinds = [kind for kind in kinds if self._fits(node, kind)]
        return sorted(kinds, key=lambda kind: kind.name != self.policy)

    def _kinds(self, node: Node) -> list[Kind]:
        fake = shown(node).meta.get("val")
        if not isinstance(fake, torch.Tensor) or fake.ndim < 1 or fake.shape[0] != BATCH:
            return []
        kinds = [Kind()]
        if fake.ndim >= 2:
            kinds.append(Kind(int(fake.shape[1])))
        return kinds

    def _fits(self, node: Node, kind: Kind) -> bool:
        try:
            emit(Region(kind, (node,), tuple(results(node))), self.limit, self.small)
        except Blocked as reason:
            self.blocked[node, kind.name] = str(reason)
            return False
        return True

    def candidates(self, node: Node, kind: Kind) -> Iterator[Group]:
        """Groups that can take the node, the best first: those that it reads from, then the latest."""
        near = {self.group_of[item].number for item in self.behind(node)}
        same = [group for group in self.groups if group.kind == kind]
        for group in sorted(same, key=lambda item: (item.number not in near, -item.number)):
            if self.compatible(node, group) and not self.leads_back(node, group):
                yield group

    def compatible(self, node: Node, group: Group) -> bool:
        """A kernel reads before it writes, and its programs do not wait for each other."""
        for other in group.nodes:
            first, last = (other, node) if self.place[other] < self.place[node] else (node, other)
            before, after = self.touched[first], self.touched[last]
            if before.writes & (after.reads | after.writes):
                return False
            if group.kind is not None and group.kind.rows is not None and before.reads & after.writes:
                return False
        operands = self.operands[node].union(*(self.operands[member] for member in group.nodes))
        return len(operands) <= MOST_OPERANDS

    def leads_back(self, node: Node, group: Group) -> bool:
        """Whether something that the node needs, outside the group, needs the group."""
        stack = [self.group_of[item].number for item in self.behind(node)]
        seen: set[int] = {group.number}
        while stack:
            number = stack.pop()
            if number in seen:
                continue
            seen.add(number)
            if group.number in self.groups[number].before:
                return True
            stack += self.groups[number].before
        return False

    def merge(self) -> None:
        """Join two regions where one can be of the other's kind and nothing stands between them."""
        again = True
        while again:
            pairs = ((one, other) for one in self.groups for other in self.groups if one is not other)
            found = next(((one, other) for one, other in pairs if self._joinable(one, other)), None)
            again = found is not None
            if found is not None:
                self._join(*found)

    def _joinable(self, one: Group, other: Group) -> bool:
        if one.kind is None or other.kind is None or not one.nodes or not other.nodes:
            return False
        if self._passes(one, other) or self._passes(other, one):
            return False
        if not all(self.compatible(node, other) for node in one.nodes):
            return False
        kind = other.kind
        return one.kind == kind or all(kind in self.possible(node) for node in one.nodes)

    def _passes(self, first: Group, last: Group) -> bool:
        """Whether a path leads from one group to another through a third."""
        stack = [number for number in last.before if number != first.number]
        seen: set[int] = set()
        while stack:
            number = stack.pop()
            if number == first.number:
                return True
            if number not in seen:
                seen.add(number)
                stack += self.groups[number].before
        return False

    def _join(self, one: Group, other: Group) -> None:
        other.nodes = sorted([*other.nodes, *one.nodes], key=self.place.__getitem__)
        self.group_of.update(dict.fromkeys(one.nodes, other))
        for group in self.groups:
            if one.number in group.before:
                group.before = (group.before - {one.number}) | {other.number}
        other.before = (other.before | one.before) - {one.number, other.number}
        one.nodes, one.before = [], set()

    def sink(self) -> None:
        """Move a node to the one other region that reads it, where the node takes nothing from its own: the value then
        stays in registers."""
        ordered = {item for node, found in self.orders.items() if found for item in (node, *found)}
        for node in reversed(self.nodes):
            group, readers = self.group_of[node], self._readers(node)
            if node in ordered or len(readers) != 1 or group.kind is None:
                continue
            target = next(iter(readers))
            own = {item for item in self.behind(node) if self.group_of[item] is group}
            if target is group or target is None or target.kind != group.kind or own:
                continue
            group.nodes.remove(node)
            target.nodes = sorted([*target.nodes, node], key=self.place.__getitem__)
            target.before |= {self.group_of[item].number for item in self.behind(node)} - {target.number}
            self.group_of[node] = target

    def _readers(self, node: Node) -> set[Group | None]:
        """Groups that read a node, free nodes followed; None stands for the graph's output."""
        found: set[Group | None] = set()
        stack = list(node.users)
        while stack:
            user = stack.pop()
            if user in self.group_of:
                found.add(self.group_of[user])
            elif user.op == "output":
                found.add(None)
            else:
                stack += user.users
        return found

    # Results --------------------------------------------------------------------------------------------------

    def regions(self, printed: Iterable[Node] = ()) -> list[Region]:
        """The groups that are regions, each worth a kernel; `printed` are free nodes that kernels read as they are."""
        read = self._read_outside(printed)
        made = []
        for group in self.groups:
            if group.kind is None or not group.nodes:
                continue
            if sum(LAUNCHES.get(node.target, 1) for node in group.nodes) < 2:
                self.blocked |= {(node, kind): "it would be alone" for node in group.nodes for kind in POLICIES}
                continue
            outputs = [item for node in group.nodes for item in results(node) if group.number in read.get(item, ())]
            made.append(Region(group.kind, tuple(group.nodes), tuple(outputs)))
        return made

    def _read_outside(self, printed_too: Iterable[Node]) -> dict[Node, set[int]]:
        """Anchor -> numbers of groups that own it where another group or the graph's output reads it."""
        found: dict[Node, set[int]] = {}
        extra = set(printed_too)
        for node in self.module.graph.nodes:
            is_reader = node in extra or node.op == "output" or (node.op == "call_function" and not is_free(node))
            if not is_reader:
                continue
            reader = self.group_of.get(node)
            printed = reader is None or reader.kind is None
            for item in anchors((node.args, node.kwargs), printed=printed):
                source = self.group_of.get(owner(item))
                if source is not None and source is not reader:
                    found.setdefault(item, set()).add(source.number)
        return found
