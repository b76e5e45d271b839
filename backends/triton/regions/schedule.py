"""A graph divided for good: what can't be written is left out, and everything is put in an order to print."""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from specc.backends.triton.regions.partition import POLICIES, Partition, anchors, is_attached, items, owner
from specc.backends.triton.regions.region import LIMIT, Blocked, Emitted, Region, emit, is_free
from specc.backends.triton.regions.table import LAUNCHES
from specc.ir.effects import flat_nodes
from specc.ir.ranges import Interval, analyse
from specc.ir.ranges.bounds import integer

Unit = Node | Region
INT32 = Interval(integer(-(2**31)), integer(2**31 - 1))


@dataclass(frozen=True, slots=True)
class Level:
    """One graph divided: its regions with their source, and everything (free nodes too) in an order to print.

    `launches` is what it is chosen by; `reasons` says why a node is in no region of a kind.
    """

    emitted: dict[Region, Emitted]
    order: tuple[Unit, ...]
    launches: int
    reasons: Mapping[tuple[Node, str], str]

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions."""
        return tuple(self.emitted)


class Waiting(Exception):
    """Regions that wait for each other."""

    def __init__(self, regions: Iterable[Region]) -> None:
        super().__init__("regions that wait for each other")
        self.regions = tuple(regions)


def written(attempt: Partition, limit: int) -> dict[Region, Emitted] | None:
    """The source of all regions; None where a node turned out not to be possible (it is in `attempt.blocked`)."""
    printed: set[Node] = set()
    while True:
        before = len(attempt.blocked)
        emitted: dict[Region, Emitted] = {}
        for region in attempt.regions(printed):
            try:
                emitted[region] = emit(region, limit, attempt.small)
            except Blocked as reason:
                attempt.blocked[reason.node, region.kind.name] = str(reason)
        if len(attempt.blocked) > before:
            return None
        read = {item for made in emitted.values() for item in made.inputs if item.op == "call_function"}
        free = {item for item in read if is_free(item) and not is_attached(item)}
        if free <= printed:
            return emitted
        printed |= free


def ordered(attempt: Partition, emitted: Mapping[Region, Emitted]) -> tuple[Unit, ...]:
    """Regions, free nodes and the rest in an order in which everything is there when it is read."""
    unit_of: dict[Node, Unit] = {
        item: region for region in emitted for node in region.nodes for item in (node, *items(node))
    }
    place = {node: number for number, node in enumerate(attempt.module.graph.nodes)}
    needs: dict[Unit, set[Unit]] = {}
    for node in place:
        unit = unit_of.get(node, node)
        if node.op != "call_function" or (node.target is operator.getitem and node in unit_of):
            continue
        read = {*_operands(node, node in unit_of), *attempt.orders.get(node, ())}
        if isinstance(unit, Region):
            read |= set(emitted[unit].inputs)
        found = {unit_of.get(item, item) for item in read if item.op == "call_function"}
        needs.setdefault(unit, set()).update(found - {unit})
    return tuple(_sorted(needs, {unit: _key(unit, place) for unit in needs}))


def _key(unit: Unit, place: Mapping[Node, int]) -> int:
    return max(place[node] for node in unit.nodes) if isinstance(unit, Region) else place[unit]


def _operands(node: Node, inside: bool) -> Iterable[Node]:
    """What must stand before a node: a region follows free nodes itself."""
    if inside:
        return {owner(item) for item in anchors((node.args, node.kwargs))}
    return {item for item in flat_nodes((node.args, node.kwargs)) if item.op != "get_attr"}


def _sorted(needs: Mapping[Unit, set[Unit]], keys: Mapping[Unit, int]) -> Iterator[Unit]:
    """Topological order, the least key first."""
    waiting = {unit: len(found) for unit, found in needs.items()}
    users: dict[Unit, list[Unit]] = {}
    for unit, found in needs.items():
        for item in found:
            users.setdefault(item, []).append(unit)
    numbers = {unit: number for number, unit in enumerate(needs)}
    ready = [(keys[unit], numbers[unit], unit) for unit in needs if not waiting[unit]]
    heapq.heapify(ready)
    done = 0
    while ready:
        _, _, unit = heapq.heappop(ready)
        done += 1
        yield unit
        for user in users.get(unit, ()):
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, (keys[user], numbers[user], user))
    if done < len(needs):
        raise Waiting(unit for unit in needs if waiting[unit] and isinstance(unit, Region))


def divide(
    module: GraphModule, policy: str, limit: int = LIMIT, small: Callable[[Node], bool] = lambda _: False
) -> Level:
    """One graph (not its loops' bodies) divided by one policy."""
    blocked: dict[tuple[Node, str], str] = {}
    while True:
        before = len(blocked)
        attempt = Partition(module, policy, blocked, limit, small)
        attempt.run()
        attempt.merge()
        attempt.sink()
        emitted = written(attempt, limit)
        if emitted is not None:
            try:
                order = ordered(attempt, emitted)
            except Waiting as reason:
                blocked |= {(node, region.kind.name): str(reason) for region in reason.regions for node in region.nodes}
            else:
                inside = {node for region in emitted for node in region.nodes}
                outside = sum(LAUNCHES.get(node.target, 1) for node in attempt.nodes if node not in inside)
                return Level(emitted, order, len(emitted) + outside, blocked)
        assert len(blocked) > before


def plan_level(module: GraphModule, limit: int = LIMIT) -> Level:
    """The better of the policies: where a node can be work per token or per batch row, which is preferred."""
    ranges = analyse(module)

    def small(node: Node) -> bool:
        return ranges.of(node).within(INT32)

    return min((divide(module, policy, limit, small) for policy in POLICIES), key=lambda level: level.launches)
