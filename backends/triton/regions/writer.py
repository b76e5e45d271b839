"""Writes the body of one kernel: `lines.py`, and what moves a value's elements along a dim."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from specc.backends.triton.kernels import region_math
from specc.backends.triton.regions.lines import Kind, Lines, Parameter
from specc.backends.triton.regions.values import (
    Block,
    Memory,
    Overlay,
    Parts,
    Piece,
    Shape,
    Value,
    padded,
    register_type,
)

__all__ = ["Kind", "Parameter", "Writer"]
# Bits of a float, so that a value can be moved by integer sums.
_BITS = {torch.float32: "tl.int32", torch.bfloat16: "tl.int32", torch.float16: "tl.int32", torch.float64: "tl.int64"}


@dataclass(slots=True)
class Writer(Lines):
    """The kernel under construction; its values' parts can be taken, moved and joined."""

    def window(self, value: Value, dim: int, start: int, size: int) -> Piece:
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
        source, stride, terms = self._movable(self.narrow(value)), 1, list[str]()
        if len(block) == 1:
            text = f"tl.gather({source}, {index}, 0)"
        else:
            every = tuple(range(len(block)))
            for axis in reversed(every):
                at = index if axis == place else self.spread_text(self.arange(block[axis]), (axis,), every)
                terms.append(at if stride == 1 else f"{at} * {stride}")
                stride *= value.block[axis]
            text = f"{self.helper(region_math.lanes)}({source}, {' + '.join(reversed(terms))})"
        if value.dtype == torch.bool:
            return f"{text} != 0"
        return f"{text}.to(tl.int64)" if value.small else text

    def safe(self, value: Block) -> Block:
        """The value with 1 in the padding, for functions that are not defined everywhere."""
        masks = self.masks(value.shape, value.axes)
        if not masks or value.literal:
            return value
        one = "1.0" if value.dtype.is_floating_point else "1"
        text = f"tl.where({' & '.join(masks)}, {value.text}, {one})"
        return self.let("inside", text, value.dtype, value.shape, value.axes, value.lead)

    def _memory_window(self, value: Memory, dim: int, start: int, shape: Shape, inside: bool) -> Piece:
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
        dtype, value = value.dtype, self.narrow(value)
        if value.dtype == torch.bool:
            text = f"tl.sum(tl.where({hit}, {value.text}.to(tl.int32), 0), {place}) != 0"
        elif value.dtype in _BITS:
            bits, kind = _BITS[value.dtype], register_type(value.dtype)
            moved = f"tl.where({hit}, {value.text}.to({bits}, bitcast=True), 0)"
            text = f"tl.sum({moved}, {place}).to({kind}, bitcast=True)"
        else:
            text = f"tl.sum(tl.where({hit}, {value.text}, 0), {place})"
            text += ".to(tl.int64)" if value.dtype != dtype else ""
        return self.let(name, text, dtype, shape, axes, value.lead)

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
