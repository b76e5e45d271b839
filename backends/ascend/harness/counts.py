"""What a GE graph consists of: ops by type, copies of whole tensors, and who asked for each Transpose and Cast.

torchair keeps an in-place update only where the graph input has exactly two consumers, the scatter and the `copy_`;
otherwise a TensorMove, a copy of the whole cache, stays in front of the scatter (design of
`optimize_reference_op_redundant_copy` in torchair 2.13.0). Fusion and layout changes of GE itself come later and
are not seen here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from specc.backends.ascend.harness.environment import MAKER, MAKER_PLACE
from specc.backends.ascend.harness.evaluator.engine import in_order

NOT_WORK = frozenset({"Data", "RefData", "Const", "NetOutput"})
MOVERS = ("Transpose", "Cast", "TensorMove")
WRITERS: Mapping[str, tuple[str, ...]] = {
    "Scatter": ("var",),
    "ScatterNdUpdate": ("var",),
    "RecurrentGatedDeltaRule": ("state",),
}
"""Ops that change an input in place, with that input's name."""


@dataclass(frozen=True, slots=True)
class Made:
    """An op of the graph: its type and name, the FX node it was made for, and the source line of that node."""

    type: str
    name: str
    fx_node: str
    place: str


@dataclass(frozen=True, slots=True)
class Update:
    """A graph input that an op changes in place: its name and index, the op, and every op that reads the input."""

    input: str
    index: int
    writer: Made
    readers: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing but the writer reads the input: no copy is needed and no order can go wrong."""
        return self.readers == (self.writer.name,)


def op_counts(graph: Any) -> Counter[str]:
    """Ops by type, without inputs, constants, outputs, and ops of constants alone (GE computes these beforehand)."""
    skipped = folded(graph)
    return Counter(op.type for op in graph.op if op.type not in NOT_WORK and op.name not in skipped)


def folded(graph: Any) -> set[str]:
    """The ops whose result is a constant: Const, and every op of constants alone."""
    constant: set[str] = set()
    for op in in_order(graph):
        sources = [name.rsplit(":", 1)[0] for name in op.input if name and not name.endswith(":-1")]
        if op.type == "Const" or (sources and op.type not in NOT_WORK and constant.issuperset(sources)):
            constant.add(op.name)
    return constant


def per_layer(more: Any, fewer: Any, layers: int = 1) -> dict[str, float]:
    """Ops of one layer: a graph with `layers` more layers against one with fewer of the same model."""
    difference = op_counts(more)
    difference.subtract(op_counts(fewer))
    return {name: count / layers for name, count in sorted(difference.items()) if count}


def made(graph: Any, types: Iterable[str] = MOVERS) -> list[Made]:
    """The ops of these types in the graph's order, with what each was made for; not those of constants alone."""
    wanted, skipped = set(types), folded(graph)
    return [_made(op) for op in graph.op if op.type in wanted and op.name not in skipped]


def copies(graph: Any) -> list[Made]:
    """Copies of whole tensors: every TensorMove."""
    return made(graph, ("TensorMove",))


def updates(graph: Any) -> list[Update]:
    """The graph inputs that are changed in place by an op (not those that are written as assigned outputs)."""
    data = {op.name: op for op in graph.op if op.type in ("Data", "RefData")}
    readers: dict[str, list[str]] = {name: [] for name in data}
    for op in graph.op:
        for source, port in (name.rsplit(":", 1) for name in op.input if name):
            if source in readers and port != "-1":
                readers[source].append(op.name)
    return [
        Update(origin(data[source]), data[source].attr["index"].i, _made(op), tuple(readers[source]))
        for op in graph.op
        for source in _written(op)
        if source in data
    ]


def origin(op: Any) -> str:
    """An input's name as the program knows it: a RefData is renamed after its address."""
    return op.attr["_origin_data_name"].s.decode() if "_origin_data_name" in op.attr else str(op.name)


def _written(op: Any) -> list[str]:
    """The names of the ops whose result this op changes in place."""
    if op.type not in WRITERS:
        return []
    data = [name for name in op.input if not name.endswith(":-1")]
    by_name = dict(zip((desc.name for desc in op.input_desc), data, strict=True))
    return [by_name[name].rsplit(":", 1)[0] for name in WRITERS[op.type]]


def _made(op: Any) -> Made:
    return Made(op.type, op.name, *(op.attr[key].s.decode() if key in op.attr else "" for key in (MAKER, MAKER_PLACE)))
