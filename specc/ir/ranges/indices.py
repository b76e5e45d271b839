"""Index operands of a graph: where an op addresses rows of a tensor by number, and which numbers are legal there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import GraphModule, Node

from specc.ir.edit import modules
from specc.ir.op import info
from specc.ir.ranges import interval as iv
from specc.ir.ranges.analysis import Ranges
from specc.ir.ranges.bounds import INFINITY, ZERO, Bound, integer, of_size
from specc.ir.ranges.calls import Call, call_of, dtype_of, shape_of, value
from specc.ir.ranges.interval import Interval

Semantics = Literal["wrap", "raise", "clamp"]
Place = tuple[Any, ...]
MAX_SLICE = 2**63 - 1


@dataclass(frozen=True, slots=True)
class IndexUse:
    """One index operand. `place` says where it stands in the node: ("args", 1, 0) or ("kwargs", "index").

    Legal indices are [0, size) of `table` along `dim` (flat where dim is None). What eager torch does with a
    negative one: `wrap` it around, `raise`, or (slices) wrap and then `clamp`. `writes`: the op changes rows.
    """

    node: Node
    op: str
    operand: Any
    place: Place
    table: Node
    dim: int | None
    size: Bound
    semantics: Semantics
    writes: bool = False

    @property
    def legal(self) -> Interval:
        """The indices that address a row; a slice's end may lie beyond the last."""
        return Interval(ZERO, INFINITY) if self.semantics == "clamp" else iv.up_to(self.size)

    @property
    def rows(self) -> Bound:
        """What a negative index counts back from: the size of the table (narrow allows fewer starts than that)."""
        shape = shape_of(self.table)
        return self.size if self.dim is None or not shape else of_size(shape[self.dim])

    @property
    def is_scalar(self) -> bool:
        """A number (Python int or symbolic int), not a tensor."""
        return isinstance(self.operand, int) or not isinstance(value(self.operand), torch.Tensor)


# op -> (position of the dim or None for flat indices, of the index, semantics, writes). Eager torch's own behaviour,
# held by test: gather, scatter, index_select, index_copy, index_add and embedding raise on -1; the others wrap.
_BY_POSITION: dict[str, tuple[int | None, int, Semantics, bool]] = {
    "gather": (1, 2, "raise", False),
    "index_select": (1, 2, "raise", False),
    "scatter": (1, 2, "raise", True),
    "scatter_add": (1, 2, "raise", True),
    "scatter_reduce": (1, 2, "raise", True),
    "index_add": (1, 2, "raise", True),
    "index_copy": (1, 2, "raise", True),
    "index_reduce": (1, 2, "raise", True),
    "index_fill": (1, 2, "wrap", True),
    "take": (None, 1, "wrap", False),
    "put": (None, 1, "wrap", True),
    "take_along_dim": (2, 1, "wrap", False),
    "select": (1, 2, "wrap", False),
    "select_scatter": (2, 3, "wrap", True),
}
_INDEX_NAMES = ("index", "indices")


def index_uses(node: Node) -> Iterator[IndexUse]:
    """The index operands of one node, in the order of its arguments."""
    call = call_of(node)
    if call is None:
        yield from _embedding_module(node)
        return
    declaration = info(node.target)
    if declaration is not None:
        yield from _declared(call)
    elif call.name in _BY_POSITION:
        yield from _by_position(call)
    elif call.name in ("embedding", "embedding_bag"):
        yield from _embedding(call)
    elif call.name in ("index", "index_put"):
        yield from _listed(call)
    elif call.name in ("slice", "slice_scatter", "narrow"):
        yield from _sliced(call)
    elif call.name in ("getitem", "setitem") and isinstance(value(call.args[0]), torch.Tensor):
        yield from _subscript(call)


def all_index_uses(module: GraphModule) -> Iterator[IndexUse]:
    """The index operands of a module and of the loop bodies in it."""
    for item in modules(module):
        for node in item.graph.nodes:
            yield from index_uses(node)


def _locate(call: Call, position: int, *names: str) -> tuple[Any, Place] | None:
    """An argument with its place, None where it isn't given."""
    for name in names:
        if name in call.kwargs:
            return call.kwargs[name], ("kwargs", name)
    return (call.args[position], ("args", position)) if position < len(call.args) else None


def _size(table: Any, dim: int | None) -> tuple[Bound, int | None] | None:
    """(size, dim counted from the front) of a table."""
    shape = shape_of(table)
    if shape is None:
        return None
    if dim is None:
        total = integer(1)
        for size in shape:
            total = total * of_size(size)
        return total, None
    if not shape:
        return integer(1), 0
    dim = dim + len(shape) if dim < 0 else dim
    return of_size(shape[dim]), dim


def _by_position(call: Call) -> Iterator[IndexUse]:
    dim_place, index_place, semantics, writes = _BY_POSITION[call.name]
    found = _locate(call, index_place, *_INDEX_NAMES)
    dim = None if dim_place is None else call.arg(dim_place, "dim", default=None)
    sized = _size(call.first, dim)
    if found is None or sized is None:
        return
    yield IndexUse(call.node, call.name, *found, call.first, sized[1], sized[0], semantics, writes)


def _embedding(call: Call) -> Iterator[IndexUse]:
    functional = getattr(call.node.target, "__module__", "") == "torch.nn.functional"
    table = call.arg(1, "weight") if functional else call.arg(0, "weight")
    found = _locate(call, 0, "input") if functional else _locate(call, 1, "indices")
    sized = _size(table, 0)
    if found is not None and sized is not None:
        yield IndexUse(call.node, call.name, *found, table, 0, sized[0], "raise")


def _embedding_module(node: Node) -> Iterator[IndexUse]:
    """An nn.Embedding that symbolic_trace keeps as a call of the submodule; the node stands for its table."""
    owner = node.graph.owning_module
    if node.op != "call_module" or owner is None:
        return
    table = owner.get_submodule(str(node.target))
    if isinstance(table, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
        place: Place = ("args", 0) if node.args else ("kwargs", "input")
        operand = node.args[0] if node.args else node.kwargs["input"]
        yield IndexUse(node, "embedding", operand, place, node, 0, integer(table.num_embeddings), "raise")


def _listed(call: Call) -> Iterator[IndexUse]:
    """`index(x, [None, i, mask])`: a bool mask takes as many dims as it has, and is never out of range."""
    found = _locate(call, 1, "indices")
    if found is None or not isinstance(found[0], (list, tuple)):
        return
    items, place = found
    dim = 0
    for position, item in enumerate(items):
        if isinstance(item, Node) and dtype_of(item) in (torch.bool, torch.uint8):
            dim += len(shape_of(item) or ())
            continue
        sized = _size(call.first, dim)
        if isinstance(item, Node) and sized is not None:
            where = (*place, position)
            writes = call.name == "index_put"
            yield IndexUse(call.node, call.name, item, where, call.first, dim, sized[0], "wrap", writes)
        dim += 1


def _sliced(call: Call) -> Iterator[IndexUse]:
    shift = 1 if call.name == "slice_scatter" else 0
    dim = call.arg(1 + shift, "dim", default=0)
    sized = _size(call.first, dim)
    if sized is None:
        return
    writes = call.name == "slice_scatter"
    if call.name == "narrow":
        found, length = _locate(call, 2, "start"), call.arg(3, "length")
        if found is not None:
            size = sized[0] - (integer(length) if isinstance(length, int) else of_size(value(length))) + integer(1)
            yield IndexUse(call.node, call.name, *found, call.first, sized[1], size, "wrap")
        return
    for position, name in ((2 + shift, "start"), (3 + shift, "end")):
        found = _locate(call, position, name)
        if found is not None and found[0] is not None:
            yield IndexUse(call.node, call.name, *found, call.first, sized[1], sized[0], "clamp", writes)


def _subscript(call: Call) -> Iterator[IndexUse]:
    """Python indexing: ints, slices, tensors, lists, None and `...` in one subscript."""
    table, key = call.args[0], call.args[1]
    shape = shape_of(table) or ()
    items = key if isinstance(key, tuple) else (key,)
    base: Place = ("args", 1)
    taken = sum(_dims_taken(item) for item in items)
    dim = 0
    for position, item in enumerate(items):
        place = (*base, position) if isinstance(key, tuple) else base
        if item is Ellipsis:
            dim += len(shape) - taken
            continue
        if _dims_taken(item) != 1 or _is_mask(item):
            dim += _dims_taken(item)
            continue
        sized = _size(table, dim)
        if sized is not None:
            yield from _subscript_item(call, item, place, dim, sized[0])
        dim += 1


def _is_mask(item: Any) -> bool:
    return isinstance(item, Node) and dtype_of(item) in (torch.bool, torch.uint8)


def _dims_taken(item: Any) -> int:
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return len(shape_of(item) or ()) if _is_mask(item) else 1


def _subscript_item(call: Call, item: Any, place: Place, dim: int, size: Bound) -> Iterator[IndexUse]:
    writes = call.name == "setitem"
    if isinstance(item, slice):
        for name in ("start", "stop"):
            end = getattr(item, name)
            if end is not None:
                yield IndexUse(call.node, call.name, end, (*place, name), call.args[0], dim, size, "clamp", writes)
    elif isinstance(item, list):
        for number, entry in enumerate(item):
            where = (*place, number)
            yield IndexUse(call.node, call.name, entry, where, call.args[0], dim, size, "wrap", writes)
    else:
        yield IndexUse(call.node, call.name, item, place, call.args[0], dim, size, "wrap", writes)


def _declared(call: Call) -> Iterator[IndexUse]:
    """Operands that an op of ours declares as row numbers (`OpInfo.indices`)."""
    declaration = info(call.node.target)
    assert declaration is not None
    names = [argument.name for argument in declaration.overload._schema.arguments]
    for entry in declaration.indices:
        found = _locate(call, names.index(entry.operand), entry.operand)
        table = call.arg(names.index(entry.into), entry.into)
        sized = _size(table, entry.dim)
        if found is not None and found[0] is not None and sized is not None:
            size = sized[0] + integer(entry.slack)
            writes = entry.into in declaration.mutates
            yield IndexUse(call.node, call.name, *found, table, sized[1], size, "raise", writes)


def interval_of(use: IndexUse, ranges: Ranges) -> Interval:
    """What the operand may be. An absent end of a slice, written as the largest int64, means the end."""
    return ranges.of(use.operand)


def is_proved(use: IndexUse, ranges: Ranges) -> bool:
    """Every possible index addresses a row."""
    return interval_of(use, ranges).within(use.legal)
