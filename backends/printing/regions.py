"""Groups of nodes that a backend prints as one call of a generated function, and the order of statements they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node


@dataclass(frozen=True, slots=True)
class Generated:
    """Source of functions that belong to one call: `NAME` in it stands for the name that the module gives.

    `base` is the wanted name; `functions` are those that the source calls, by their own names; `imports` statements by
    the name they bind.
    """

    base: str
    source: str
    functions: tuple[Callable[..., Any], ...] = ()
    imports: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class RegionCall:
    """`outputs = function(*inputs)` in place of `nodes`. `impure`: it also writes operands."""

    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    generated: Generated
    impure: bool


Unit = Node | RegionCall


@dataclass(frozen=True, slots=True)
class Plan:
    """How one graph is printed: its calls and regions in order. A node of a region is at its region's place."""

    order: tuple[Unit, ...]
    place: Mapping[Node, int]

    def region(self, node: Node) -> RegionCall | None:
        """The region that a node belongs to."""
        unit = self.order[self.place[node]] if node in self.place else None
        return unit if isinstance(unit, RegionCall) else None


def planned(units: Sequence[Unit]) -> Plan:
    """The plan with these units, in this order."""
    place: dict[Node, int] = {}
    for number, unit in enumerate(units):
        for node in unit.nodes if isinstance(unit, RegionCall) else (unit,):
            place[node] = number
    return Plan(tuple(units), place)
