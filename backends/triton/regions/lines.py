"""Lines, names and loads of a kernel: values as blocks, memory at computed addresses, broadcasting, rounding."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
class Lines(ABC):
    """The kernel under construction."""

    kind: Kind
    names: Names
    resolve: Callable[[Any, Node], Value]
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
    small: Callable[[Node], bool] = lambda _: False

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
            made = self.resolve(self, node)
            self.env[node] = self._marked(node, made) if isinstance(made, Block) else made
        return self.env[node]

    def _marked(self, node: Node, value: Block) -> Block:
        """The value, `small` if it is known to be."""
        return replace(value, small=True) if value.dtype == torch.int64 and self.small(node) else value

    @staticmethod
    def narrow(value: Block) -> Block:
        """A small int64 as int32, for what moves elements between threads: half the bytes and instructions."""
        if not value.small or value.literal:
            return value
        return replace(value, text=f"{value.text}.to(tl.int32)", dtype=torch.int32, small=False)

    def widen(self, value: Block, dtype: torch.dtype) -> Block:
        """`narrow` undone."""
        if value.dtype == dtype or value.dtype != torch.int32 or dtype != torch.int64:
            return value
        return replace(value, text=f"{self.typed(value)}.to(tl.int64)", dtype=dtype, literal=False)

    def block(self, node: Node | Value) -> Block:
        """The node's value in registers."""
        if isinstance(node, Node):
            return self._marked(node, self.block(self.value(node)))
        value = node
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

    @abstractmethod
    def join(self, parts: Parts) -> Block:
        """The pieces as one block."""

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
        return replace(self.let("spread", text, value.dtype, value.shape, axes, value.lead), small=value.small)

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
