"""What a value of a region is inside its kernel: a block in registers, or a view of memory that is not loaded yet.

A kernel's program works on one batch row (or one token row); the leading dims that number the programs are left out
of a value's `shape`. The other dims of size over 1 are axes of a Triton block, padded to powers of two. Lanes in the
padding hold anything: reductions, gathers and stores mask them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

Shape = tuple[int, ...]
# One dim of memory as factors (size, stride), row-major: a flattened dim has more than one.
Factors = tuple[tuple[int, int], ...]
TYPES = {
    torch.float64: "tl.float64",
    torch.float32: "tl.float32",
    torch.bfloat16: "tl.float32",
    torch.float16: "tl.float32",
    torch.int64: "tl.int64",
    torch.int32: "tl.int32",
    torch.int16: "tl.int16",
    torch.int8: "tl.int8",
    torch.uint8: "tl.uint8",
    torch.bool: "tl.int1",
}


class Unsupported(Exception):
    """A node that a region can't hold in this form; the message says why."""


def padded(size: int) -> int:
    """The power of two at or above `size`."""
    return 1 << max(size - 1, 0).bit_length()


def register_type(dtype: torch.dtype) -> str:
    """The Triton type that values of `dtype` have in registers: 16-bit floats are float32 with rounded contents."""
    if dtype not in TYPES:
        raise Unsupported(f"dtype {dtype}")
    return TYPES[dtype]


@dataclass(frozen=True, slots=True)
class Block:
    """`text` is a Triton expression. `axes`: the dims of `shape` that are block axes; along the others (sizes over 1
    too) the value is the same. `literal`: the text is a Python number, known when the kernel is compiled. `small`: an
    int64 whose values int32 can hold (see `Lines.narrow`)."""

    text: str
    dtype: torch.dtype
    shape: Shape
    axes: tuple[int, ...]
    lead: int
    literal: bool = False
    small: bool = False

    @property
    def block(self) -> Shape:
        """Sizes of the block's axes."""
        return tuple(padded(self.shape[axis]) for axis in self.axes)

    def reshaped(self, shape: Shape, axes: tuple[int, ...], lead: int | None = None) -> Block:
        """The same block read with other dims."""
        return replace(self, shape=shape, axes=axes, lead=self.lead if lead is None else lead)


@dataclass(frozen=True, slots=True)
class Memory:
    """Elements at `pointer` + `offset` + sum over dims of the index in its factors; `root` names the tensor."""

    pointer: str
    dtype: torch.dtype
    shape: Shape
    dims: tuple[Factors, ...]
    offset: tuple[str, ...]
    lead: int
    name: str

    def axes(self) -> tuple[int, ...]:
        """Dims along which elements differ."""
        return tuple(
            dim for dim, size in enumerate(self.shape) if size > 1 and any(stride for _, stride in self.dims[dim])
        )


@dataclass(frozen=True, slots=True)
class Parts:
    """Pieces one after the other along `dim`, which are joined only where something needs the whole."""

    pieces: tuple[Block | Memory | Parts, ...]
    dim: int
    shape: Shape
    dtype: torch.dtype
    lead: int


@dataclass(frozen=True, slots=True)
class Overlay:
    """`base` with `part` in the place of elements from `start` (an index that the kernel is given) on along `dim`.

    It can only be stored.
    """

    base: Block | Memory
    part: Block | Memory | Parts
    dim: int
    start: str
    shape: Shape
    dtype: torch.dtype
    lead: int


Piece = Block | Memory | Parts
Value = Piece | Overlay


def contiguous(shape: Shape) -> tuple[Factors, ...]:
    """Factors of a row-major tensor."""
    stride, dims = 1, list[Factors]()
    for size in reversed(shape):
        dims.append(((size, stride),))
        stride *= size
    return tuple(reversed(dims))


def numel(shape: Shape) -> int:
    """Number of elements."""
    count = 1
    for size in shape:
        count *= size
    return count
