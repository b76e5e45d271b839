"""Writes the body of one kernel: names, loads at computed addresses, blocks brought to a shape, rounding, stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Node

from specc.backends.printing.names import Names
from specc.backends.triton.kernels import region_math
from specc.backends.triton.regions.values import (
    Block,
    Factors,
    Memory,
    Overlay,
    Parts,
    Shape,
    Unsupported,
    Value,
    contiguous,
    numel,
    padded,
    register_type,
)
from specc.ir.dims import BATCH, is_symbolic

INDENT = "    "
# Bits of a float, so that a value can be moved by integer sums.
_BITS = {torch.float32: "tl.int32", torch.bfloat16: "tl.int32", torch.float16: "tl.int32", torch.float64: "tl.int64"}


@dataclass(frozen=True, slots=True)
class Kind:
    """`rows` is None: one program per batch row. Else one program per (batch, token), with `rows` tokens (a symbolic
    size too) per batch row."""

    rows: int | None = None

    @property
    def name(self) -> str:
        """`batch` or `token`."""
        return "batch" if self.rows is None else "token"

    def lead(self, shape: Sequence[int]) -> int:
        """How many leading dims of a tensor number programs (for `token`: one where a tensor has no token dim)."""
        if not shape or shape[0] != BATCH:
            return 0
        if self.rows is None or len(shape) < 2 or shape[1] not in (1, self.rows):
            return 1
        return 2


@dataclass(slots=True)
class Parameter:
    """A pointer of the kernel, or a whole number (dtype None). `written`: "" for an input, "new" for an output,
    "inplace" for a tensor that the kernel changes."""

    name: str
    node: Node
    dtype: torch.dtype | None
    written: str = ""


@dataclass(slots=True)
class Writer:
    """The kernel under construction."""

    kind: Kind
    names: Names
    resolve: Callable[[Writer, Node], Value]
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    env: dict[Node, Value] = field(default_factory=dict)
    loaded: dict[Any, Block] = field(default_factory=dict)
    halved: dict[tuple[str, int], tuple[Block, Block]] = field(default_factory=dict)
    parameters: dict[Node, Parameter] = field(default_factory=dict)
    outputs: dict[Node, Parameter] = field(default_factory=dict)
    ranges: set[int] = field(default_factory=set)
    helpers: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    stores: list[str] = field(default_factory=list)
    stored: list[Node] = field(default_factory=list)
    uses_batch: bool = False
    largest: int = 1

    # Lines and names ------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """One statement."""
        self.lines.append(INDENT * self.depth + text)

    @contextmanager
    def nested(self, head: str) -> Iterator[None]:
        """Statements inside `head`, a loop. What is loaded inside is not known outside."""
        self.line(head)
        self.depth += 1
        before = dict(self.loaded), dict(self.env), dict(self.halved)
        yield
        self.loaded, self.env, self.halved = before
        self.depth -= 1

    def helper(self, function: Any) -> str:
        """The name of a device function that the kernel calls."""
        self.helpers[function.__name__] = function
        return str(function.__name__)

    def let(self, name: str, text: str, dtype: torch.dtype, shape: Shape, axes: tuple[int, ...], lead: int) -> Block:
        """`name = text`."""
        made = Block(self.names.fresh(name), dtype, shape, axes, lead)
        size = numel(made.block)
        self.largest = max(self.largest, size)
        self.line(f"{made.text} = {text}")
        return made

    def rounded(self, text: str, dtype: torch.dtype) -> str:
        """A float32 expression rounded to a 16-bit dtype, in float32."""
        if dtype == torch.bfloat16:
            return f"{self.helper(region_math.round_bfloat16)}({text})"
        if dtype == torch.float16:
            return f"({text}).to(tl.float16).to(tl.float32)"
        return text

    # Reading values -------------------------------------------------------------------------------------------

    def table(self, name: str, call: str) -> str:
        """The pointer of a table that the caller makes by `call` (with `{device}` in it), once."""
        if call not in self.tables:
            self.tables[call] = self.names.fresh(f"{name}_at")
        return self.tables[call]

    def value(self, node: Node) -> Value:
        """The value of a node of the region, or of an input."""
        if node not in self.env:
            self.env[node] = self.resolve(self, node)
        return self.env[node]

    def block(self, node: Node | Value) -> Block:
        """The node's value in registers."""
        value = self.value(node) if isinstance(node, Node) else node
        if isinstance(value, Block):
            return value
        if isinstance(value, Overlay):
            raise Unsupported("a part at a computed place, which is not only stored")
        if isinstance(value, Parts):
            if value not in self.loaded:
                self.loaded[value] = self.join(value)
            return self.loaded[value]
        # Views that differ in dims of size 1 alone are one load.
        axes = value.axes()
        key = (value.pointer, value.offset, tuple((value.shape[axis], value.dims[axis]) for axis in axes))
        if key not in self.loaded:
            self.loaded[key] = self.load(value)
        return self.loaded[key].reshaped(value.shape, axes, value.lead)

    def empty(self, node: Node) -> Block | None:
        """A value without elements: nothing of it is ever read."""
        fake = node.meta.get("val")
        if not isinstance(fake, torch.Tensor) or 0 not in fake.shape:
            return None
        lead = self.kind.lead(fake.shape)
        return Block("0", fake.dtype, tuple(int(size) for size in fake.shape[lead:]), (), lead, literal=True)

    def input(self, node: Node) -> Memory | Block:
        """A tensor of the caller as memory, or a number of the caller (the index of a loop around the kernel)."""
        fake = node.meta["val"]
        if isinstance(fake, int) and not isinstance(fake, bool):
            if node not in self.parameters:
                self.parameters[node] = Parameter(self.names.fresh(node.name), node, None)
            return Block(self.parameters[node].name, torch.int64, (), (), 0, literal=True)
        if not isinstance(fake, torch.Tensor):
            raise Unsupported(f"`{node.name}` is no tensor")
        lead = self.kind.lead(fake.shape)
        rest = tuple(int(size) for size in fake.shape[lead:])
        if any(is_symbolic(size) for size in rest):
            raise Unsupported(f"`{node.name}` has a size that is not known in its rows")
        register_type(fake.dtype)
        if node not in self.parameters:
            self.parameters[node] = Parameter(self.names.fresh(f"{node.name}_at"), node, fake.dtype)
        parameter = self.parameters[node]
        return Memory(
            parameter.name, fake.dtype, rest, contiguous(rest), self.row_term(fake.shape, lead), lead, node.name
        )

    def row_term(self, shape: Sequence[int], lead: int) -> tuple[str, ...]:
        """Where the program's row of a tensor starts."""
        if lead == 0:
            return ()
        row = "row"
        if self.kind.rows is not None and (lead == 1 or shape[1] != self.kind.rows):
            row, self.uses_batch = "batch", True
        size = numel(tuple(shape[lead:]))
        return (row if size == 1 else f"{row} * {size}",)

    def index(self, shape: Shape, axes: tuple[int, ...], dim: int) -> str:
        """The index along `dim` in a block with these axes."""
        if dim not in axes:
            return "0"
        return self.spread_text(self.arange(padded(shape[dim])), (dim,), axes)

    def arange(self, size: int) -> str:
        """The name of 0, 1, …, size - 1."""
        self.ranges.add(size)
        return f"i{size}"

    @staticmethod
    def spread_text(text: str, own: tuple[int, ...], axes: tuple[int, ...]) -> str:
        """A block with axes `own` where a block with `axes` is wanted, with size-1 axes for what it lacks."""
        if own == axes or not own:
            return text
        return f"{text}[{', '.join(':' if axis in own else 'None' for axis in axes)}]"

    def spread(self, value: Block, shape: Shape, axes: tuple[int, ...]) -> str:
        """`value` broadcast (torch's rules: dims aligned from the right) into a block of `shape` with `axes`."""
        return self.spread_text(value.text, self.aligned(value, shape), axes)

    @staticmethod
    def aligned(value: Block, shape: Shape) -> tuple[int, ...]:
        """The block axes of `value` as dims of a broadcast result of `shape`."""
        shift = len(shape) - len(value.shape)
        if shift < 0 and any(size != 1 for size in value.shape[:-shift]):
            raise Unsupported("an operand without rows has a dim where others have their rows")
        return tuple(axis + shift for axis in value.axes)

    def full(self, value: Block, dims: Sequence[int] | None = None) -> Block:
        """The same value with block axes for all its dims over 1 (or for those among `dims`)."""
        wanted = range(len(value.shape)) if dims is None else dims
        axes = tuple(dim for dim, size in enumerate(value.shape) if size > 1 and (dim in value.axes or dim in wanted))
        if axes == value.axes:
            return value
        block = [padded(value.shape[axis]) for axis in axes]
        if not value.axes:
            text = f"tl.full({block}, {value.text}, {register_type(value.dtype)})"
        else:
            text = f"tl.broadcast_to({self.spread_text(value.text, value.axes, axes)}, {block})"
        return self.let("spread", text, value.dtype, value.shape, axes, value.lead)

    def typed(self, value: Block) -> str:
        """The text, as a value of its dtype where it is a plain number."""
        return f"tl.full([], {value.text}, {register_type(value.dtype)})" if value.literal else value.text

    # Memory ---------------------------------------------------------------------------------------------------

    def load(self, memory: Memory) -> Block:
        """All elements of a view."""
        axes = memory.axes()
        indices = [self.index(memory.shape, axes, dim) if dim in axes else None for dim in range(len(memory.shape))]
        masks = self.masks(memory.shape, axes)
        return self.load_at(memory, memory.shape, axes, memory.lead, indices, masks)

    def masks(self, shape: Shape, axes: tuple[int, ...]) -> list[str]:
        """Conditions that select the lanes outside the padding."""
        return [f"({self.index(shape, axes, dim)} < {shape[dim]})" for dim in axes if padded(shape[dim]) != shape[dim]]

    def address(self, memory: Memory, indices: Sequence[str | None]) -> str:
        """The pointer expression of elements; an index None (or "0") stands for 0."""
        terms = [memory.pointer, *memory.offset]
        for factors, index in zip(memory.dims, indices, strict=True):
            if index not in (None, "0"):
                terms += _terms(str(index), factors)
        return " + ".join(terms)

    def load_at(
        self,
        memory: Memory,
        shape: Shape,
        axes: tuple[int, ...],
        lead: int,
        indices: Sequence[str | None],
        masks: Sequence[str],
    ) -> Block:
        """Elements at `indices` (texts in a block with `axes`; one per dim of the memory) as a block of `shape`."""
        address = self.address(memory, indices)
        guard = f", mask={' & '.join(masks)}, other=0" if masks else ""
        text = f"tl.load({address}{guard})"
        if memory.dtype == torch.bool:
            text += " != 0"
        elif memory.dtype in (torch.bfloat16, torch.float16):
            text += ".to(tl.float32)"
        return self.let(memory.name, text, memory.dtype, shape, axes, lead)

    # Moving along a dim ---------------------------------------------------------------------------------------

    def window(self, value: Value, dim: int, start: int, size: int) -> Value:
        """Elements [start, start + size) along `dim`; those outside the value hold anything."""
        if isinstance(value, Overlay):
            value = self.block(value)
        shape = (*value.shape[:dim], size, *value.shape[dim + 1 :])
        inside = start >= 0 and start + size <= value.shape[dim]
        if isinstance(value, Memory):
            return self._memory_window(value, dim, start, shape, inside)
        if isinstance(value, Parts):
            if dim == value.dim and inside:
                first = 0
                for piece in value.pieces:
                    if first <= start and start + size <= first + piece.shape[dim]:
                        return self.window(piece, dim, start - first, size)
                    first += piece.shape[dim]
            value = self.block(value)
        if dim not in value.axes:
            return value.reshaped(shape, value.axes)
        if start == 0 and padded(size) == padded(value.shape[dim]) and size > 1:
            return value.reshaped(shape, value.axes)
        if size == 1:
            return self.pick(value, dim, str(start), keep=True)
        if 2 * size == value.shape[dim] == padded(value.shape[dim]) and start in (0, size):
            return self.halves(value, dim)[start // size]
        axes, old = value.axes, padded(value.shape[dim])
        at = self.arange(padded(size))
        index = self.spread_text(f"({at} + {start} & {old - 1})" if start else f"({at} & {old - 1})", (dim,), axes)
        text = self.moved(value, axes.index(dim), index, tuple(padded(shape[axis]) for axis in axes))
        return self.let("moved", text, value.dtype, shape, axes, value.lead)

    def moved(self, value: Block, place: int, index: str, block: tuple[int, ...]) -> str:
        """Lanes of a block taken at `index` (a text in a block of sizes `block`) along the axis at `place`."""
        source, stride, terms = self._movable(value), 1, list[str]()
        if len(block) == 1:
            text = f"tl.gather({source}, {index}, 0)"
        else:
            every = tuple(range(len(block)))
            for axis in reversed(every):
                at = index if axis == place else self.spread_text(self.arange(block[axis]), (axis,), every)
                terms.append(at if stride == 1 else f"{at} * {stride}")
                stride *= value.block[axis]
            text = f"{self.helper(region_math.lanes)}({source}, {' + '.join(reversed(terms))})"
        return f"{text} != 0" if value.dtype == torch.bool else text

    def safe(self, value: Block) -> Block:
        """The value with 1 in the padding, for functions that are not defined everywhere."""
        masks = self.masks(value.shape, value.axes)
        if not masks or value.literal:
            return value
        one = "1.0" if value.dtype.is_floating_point else "1"
        text = f"tl.where({' & '.join(masks)}, {value.text}, {one})"
        return self.let("inside", text, value.dtype, value.shape, value.axes, value.lead)

    def _memory_window(self, value: Memory, dim: int, start: int, shape: Shape, inside: bool) -> Value:
        factors = value.dims[dim]
        if inside and len(factors) == 1:
            offset = value.offset if start * factors[0][1] == 0 else (*value.offset, str(start * factors[0][1]))
            dims = (*value.dims[:dim], ((shape[dim], factors[0][1]),), *value.dims[dim + 1 :])
            return replace(value, shape=shape, dims=dims, offset=offset)
        if dim not in value.axes():
            dims = (*value.dims[:dim], ((shape[dim], 0),), *value.dims[dim + 1 :])
            return replace(value, shape=shape, dims=dims)
        axes = tuple(d for d, size in enumerate(shape) if size > 1 and (d == dim or d in value.axes()))
        indices: list[str | None] = [self.index(shape, axes, d) for d in range(len(shape))]
        masks = [
            f"({self.index(shape, axes, d)} < {shape[d]})" for d in axes if d != dim and padded(shape[d]) != shape[d]
        ]
        position = f"({indices[dim]} + {start})" if start else str(indices[dim])
        indices[dim] = position
        masks += [f"({position} >= 0)"] if start < 0 else []
        masks += [f"({position} < {value.shape[dim]})"]
        return self.load_at(value, shape, axes, value.lead, indices, masks)

    def pick(self, value: Block, dim: int, index: str, *, keep: bool, name: str = "picked") -> Block:
        """The element at `index` (a scalar text) along `dim`, which stays with size 1 if `keep`."""
        shape = (*value.shape[:dim], *((1,) if keep else ()), *value.shape[dim + 1 :])
        axes = tuple(axis - (axis > dim and not keep) for axis in value.axes if axis != dim)
        if dim not in value.axes:
            return value.reshaped(shape, axes)
        hit = f"{self.index(value.shape, value.axes, dim)} == {index}"
        place = value.axes.index(dim)
        if value.dtype == torch.bool:
            text = f"tl.sum(tl.where({hit}, {value.text}.to(tl.int32), 0), {place}) != 0"
        elif value.dtype in _BITS:
            bits, kind = _BITS[value.dtype], register_type(value.dtype)
            moved = f"tl.where({hit}, {value.text}.to({bits}, bitcast=True), 0)"
            text = f"tl.sum({moved}, {place}).to({kind}, bitcast=True)"
        else:
            text = f"tl.sum(tl.where({hit}, {value.text}, 0), {place})"
        return self.let(name, text, value.dtype, shape, axes, value.lead)

    def halves(self, value: Block, dim: int) -> tuple[Block, Block]:
        """The first and the second half along an axis whose size is a power of two."""
        key = (value.text, dim)
        if key not in self.halved:
            half, place = value.shape[dim] // 2, value.axes.index(dim)
            shape = (*value.shape[:dim], half, *value.shape[dim + 1 :])
            block, count = value.block, len(value.block)
            apart = [*block[:place], 2, half, *block[place + 1 :]]
            order = [item for item in range(count + 1) if item != place] + [place]
            names = [self.names.fresh("half") for _ in range(2)]
            text = f"tl.split(tl.permute(tl.reshape({self._movable(value)}, {apart}), {order}))"
            self.line(f"{', '.join(names)} = {text}")
            made = [Block(name, value.dtype, shape, value.axes, value.lead) for name in names]
            if value.dtype == torch.bool:
                made = [self.let("half", f"{item.text} != 0", torch.bool, shape, item.axes, item.lead) for item in made]
            self.halved[key] = (made[0], made[1])
        return self.halved[key]

    @staticmethod
    def _movable(value: Block) -> str:
        """The text of a value as numbers."""
        return f"{value.text}.to(tl.int8)" if value.dtype == torch.bool else value.text

    def _joined_halves(self, parts: Parts) -> Block | None:
        """Two halves of a power of two, brought together without moving lanes between threads by index."""
        dim, half = parts.dim, parts.shape[parts.dim] // 2
        if [piece.shape[dim] for piece in parts.pieces] != [half, half] or half != padded(half) or half < 2:
            return None
        blocks = [self.block(piece) for piece in parts.pieces]
        axes = blocks[0].axes
        if blocks[1].axes != axes or dim not in axes or parts.dtype == torch.bool:
            return None
        place, count = axes.index(dim), len(axes)
        order = [*range(place), count, *range(place, count)]
        block = [padded(parts.shape[axis]) for axis in axes]
        joined = f"tl.permute(tl.join({blocks[0].text}, {blocks[1].text}), {order})"
        return self.let("joined", f"tl.reshape({joined}, {block})", parts.dtype, parts.shape, axes, parts.lead)

    def join(self, parts: Parts) -> Block:
        """The pieces as one block."""
        halves = self._joined_halves(parts)
        if halves is not None:
            return halves
        dim, total = parts.dim, parts.shape[parts.dim]
        pieces: list[tuple[Block, int]] = []
        first = 0
        for piece in parts.pieces:
            moved = self.block(self.window(piece, dim, -first, total))
            first += piece.shape[dim]
            pieces.append((moved, first))
        axes = tuple(
            axis
            for axis, size in enumerate(parts.shape)
            if size > 1 and (axis == dim or any(axis in piece.axes for piece, _ in pieces))
        )
        at = self.index(parts.shape, axes, dim)
        text = self.spread_text(self.typed(pieces[-1][0]), pieces[-1][0].axes, axes)
        for piece, end in reversed(pieces[:-1]):
            text = f"tl.where({at} < {end}, {self.spread_text(self.typed(piece), piece.axes, axes)}, {text})"
        return self.let("joined", text, parts.dtype, parts.shape, axes, parts.lead)


def _terms(index: str, factors: Factors) -> list[str]:
    """The address terms of one dim."""
    if len(factors) == 1:
        stride = factors[0][1]
        return [] if stride == 0 else [index if stride == 1 else f"{index} * {stride}"]
    inner = numel(tuple(size for size, _ in factors))
    terms = []
    for place, (size, stride) in enumerate(factors):
        inner //= size
        part = index if inner == 1 else f"{index} // {inner}"
        if place:
            part = f"{part} % {size}"
        if stride:
            terms.append(f"({part})" if stride == 1 else f"({part}) * {stride}")
    return terms
