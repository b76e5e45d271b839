"""Hypothesis strategies: graphs of the nodes that regions know, on batch rows and on token rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from hypothesis import strategies as st
from torch.fx import GraphModule, Node

from specc.ir import ops
from specc.ir.build import GraphBuilder, fake
from specc.ir.dims import BATCH

aten = torch.ops.aten
Draw = Callable[..., object]
INTEGERS = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.maximum.default, aten.minimum.default)
FLOATS = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.maximum.default)
COMPARED = (aten.lt.Tensor, aten.le.Tensor, aten.eq.Tensor, aten.ne.Tensor, aten.ge.Tensor)


class Grower:
    """Appends random nodes to a graph; `values` are what they may read."""

    def __init__(self, draw: Draw, places: Sequence[tuple[str, torch.Tensor]]) -> None:
        self.draw = draw
        self.builder = GraphBuilder()
        self.values: list[Node] = [self.builder.placeholder(name, value) for name, value in places]
        self.made: list[Node] = []

    def pick(self, test: Callable[[torch.Tensor], bool]) -> Node:
        """Any value of some form; the last ones are likelier."""
        fitting = [node for node in self.values if test(node.meta["val"])]
        return self.draw(st.sampled_from(fitting[-8:]))  # type: ignore[return-value]

    def call(self, target: object, *args: object, **kwargs: object) -> Node:
        """A node that later ones may read."""
        node = self.builder.call(target, *args, **kwargs)  # type: ignore[arg-type]
        if isinstance(node.meta["val"], torch.Tensor):
            self.values.append(node)
            self.made.append(node)
        return node

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))  # type: ignore[return-value]

    def choice(self, items: Sequence[object]) -> object:
        return self.draw(st.sampled_from(list(items)))

    def finish(self) -> GraphModule:
        """The graph; a drawn part of its values is read outside."""
        kept = [node for node in self.made if self.draw(st.booleans())] or self.made[-1:]
        return self.builder.output(kept)


def integral(value: torch.Tensor) -> bool:
    return value.dtype == torch.int64


def logical(value: torch.Tensor) -> bool:
    return value.dtype == torch.bool


def fits(first: Node, second: torch.Tensor) -> bool:
    """Whether two shapes broadcast, rows against rows."""
    one, other = first.meta["val"].shape, second.shape
    if len(one) != len(other):
        return False
    return all(a == b or 1 in (a, b) for a, b in zip(one, other, strict=True))


def grow_batch(g: Grower) -> None:
    """One node on integers or booleans of batch rows."""
    kind = g.choice(("math", "scalar", "compare", "logic", "where", "view", "reduce", "move", "table", "cast"))
    x = g.pick(integral)
    shape = tuple(x.meta["val"].shape)
    dim = len(shape) - 1
    wide = dim > 0 and shape[-1] > 1
    if kind == "math":
        g.call(g.choice(INTEGERS), x, g.pick(lambda value: integral(value) and fits(x, value)))
    elif kind == "scalar":
        g.call(g.choice((aten.add.Tensor, aten.mul.Tensor, aten.clamp_max.default, aten.remainder.Scalar)), x, 3)
    elif kind == "compare":
        g.call(g.choice(COMPARED), x, g.pick(lambda value: integral(value) and fits(x, value)))
    elif kind == "logic":
        mask = g.pick(logical)
        other = g.pick(lambda value: logical(value) and fits(mask, value))
        g.call(g.choice((aten.logical_and.default, aten.logical_or.default)), mask, other)
    elif kind == "where":
        mask = g.pick(logical)
        first = g.pick(lambda value: integral(value) and fits(mask, value)) if _any(g, mask) else None
        if first is not None:
            g.call(aten.where.self, mask, first, g.call(aten.zeros_like.default, first))
    elif kind == "cast":
        g.call(aten._to_copy.default, g.pick(logical), dtype=torch.int64)
    elif kind == "view":
        _view(g, x, shape, dim)
    elif kind == "reduce" and wide:
        _reduce(g, x, dim)
    elif kind == "move" and wide:
        _move(g, x, shape, dim)
    elif kind == "table" and len(shape) == 2:
        places = [g.number(0, shape[1] - 1) for _ in range(g.number(1, 6))]
        table = g.builder.call(ops.int_table, x, places, [len(places)])
        g.call(aten.index_select.default, x, 1, table)


def _any(g: Grower, mask: Node) -> bool:
    return any(integral(node.meta["val"]) and fits(mask, node.meta["val"]) for node in g.values)


def _view(g: Grower, x: Node, shape: tuple[int, ...], dim: int) -> None:
    kind = g.choice(("unsqueeze", "flatten", "unflatten", "narrow", "select", "transpose"))
    if kind == "unsqueeze" and dim < 3:
        g.call(aten.unsqueeze.default, x, g.number(1, dim + 1))
    elif kind == "flatten" and dim >= 2:
        g.call(aten.flatten.using_ints, x, dim - 1, dim)
    elif kind == "unflatten" and dim >= 1 and shape[-1] == 6:
        g.call(aten.unflatten.int, x, dim, g.choice(([2, 3], [3, 2])))
    elif kind == "narrow" and dim >= 1 and shape[-1] > 1:
        start = g.number(0, shape[-1] - 1)
        g.call(aten.narrow.default, x, dim, start, g.number(1, shape[-1] - start))
    elif kind == "select" and dim >= 2:
        g.call(aten.select.int, x, dim, g.number(0, shape[-1] - 1))
    elif kind == "transpose" and dim >= 2:
        g.call(aten.transpose.int, x, dim - 1, dim)


def _reduce(g: Grower, x: Node, dim: int) -> None:
    target = g.choice((aten.sum.dim_IntList, aten.amax.default, aten.argmax.default, aten.cumsum.default, aten.any.dim))
    if target is aten.any.dim:
        mask = g.call(aten.lt.Scalar, x, 1)
        g.call(target, mask, dim)
    elif target in (aten.argmax.default, aten.cumsum.default):
        g.call(target, x, dim)
    else:
        g.call(target, x, [dim], g.choice((True, False)))


def _move(g: Grower, x: Node, shape: tuple[int, ...], dim: int) -> None:
    kind = g.choice(("gather", "pad", "cat", "rows", "scatter"))
    if kind == "gather":
        index = g.call(
            aten.remainder.Scalar, g.pick(lambda value: integral(value) and tuple(value.shape) == shape), shape[-1]
        )
        g.call(aten.gather.default, x, dim, index)
    elif kind == "pad":
        g.call(aten.constant_pad_nd.default, x, [g.number(0, 2), g.number(0, 2)], g.number(-1, 1))
    elif kind == "cat":
        other = g.pick(lambda value: integral(value) and tuple(value.shape[:-1]) == shape[:-1])
        g.call(aten.cat.default, [x, other], dim)
    elif kind == "rows":
        index = g.pick(lambda value: integral(value) and value.ndim == 2)
        inside = g.call(aten.remainder.Scalar, index, shape[1])
        g.call(aten.index.Tensor, x, [g.builder.call(ops.batch_index, index), inside])
    elif dim == 1 and shape[1] >= 3:
        part = g.call(aten.narrow.default, x, 1, 0, 2)
        g.call(aten.slice_scatter.default, x, part, 1, 1, 3)


@st.composite
def batch_graphs(draw: Draw) -> GraphModule:
    """Integers of batch rows."""
    g = Grower(
        draw,
        [
            ("a", fake((BATCH, 5), torch.int64)),
            ("b", fake((BATCH, 6), torch.int64)),
            ("c", fake((BATCH,), torch.int64)),
            ("d", fake((BATCH, 3, 5), torch.int64)),
            ("m", fake((BATCH, 5), torch.bool)),
            ("n", fake((BATCH, 3, 5), torch.bool)),
        ],
    )
    for _ in range(g.number(3, 12)):
        grow_batch(g)
    while not g.made:
        grow_batch(g)
    return g.finish()


TOKENS, HIDDEN, HEADS, HEAD = 4, 12, 3, 4
EXACT = ("math", "weight", "number", "where", "view", "cat", "round")
ROUNDED = ("silu", "sigmoid", "softplus", "norm", "rope", "sum", "largest")


def floating(value: torch.Tensor) -> bool:
    return value.dtype.is_floating_point and value.shape[:2] == (BATCH, TOKENS)


def grow_token(g: Grower, kinds: Sequence[str], dtype: torch.dtype) -> None:
    """One node on floats of token rows; `w` is a weight, `mask` a boolean per token."""
    weight, mask, cos, sin = g.values[:4]
    kind = g.choice(kinds)
    x = g.pick(floating)
    shape = tuple(x.meta["val"].shape)
    same = x.meta["val"].dtype == dtype
    if kind == "math":
        other = g.pick(lambda value: floating(value) and fits(x, value))
        g.call(g.choice((*FLOATS, aten.sub.Tensor)), x, other)
    elif kind == "weight" and shape == (BATCH, TOKENS, HIDDEN):
        g.call(g.choice((aten.add.Tensor, aten.mul.Tensor)), x, weight)
    elif kind == "number":
        # Exact in bfloat16: torch itself rounds other numbers to it in some CPU kernels and not on a GPU.
        g.call(g.choice((aten.mul.Tensor, aten.add.Tensor, aten.clamp_min.default, aten.div.Tensor)), x, 0.75)
    elif kind == "where" and len(shape) == 3:
        g.call(aten.where.self, mask, x, g.call(aten.neg.default, x))
    elif kind == "view":
        _token_view(g, x, shape)
    elif kind == "cat" and len(shape) >= 3:
        other = g.pick(lambda value: floating(value) and value.dtype == x.meta["val"].dtype and fits(x, value[..., :1]))
        if tuple(other.meta["val"].shape[:-1]) == shape[:-1]:
            g.call(aten.cat.default, [x, other], -1)
    elif kind == "round":
        g.call(aten._to_copy.default, x, dtype=g.choice((torch.float32, torch.bfloat16)))
    elif kind in ("silu", "sigmoid", "softplus"):
        g.call(getattr(aten, kind).default, x)
    elif kind == "norm" and shape[-1] in (HIDDEN, HEAD) and same:
        used = weight if shape[-1] == HIDDEN else g.builder.call(aten.narrow.default, weight, 0, 2, HEAD)
        g.call(aten.rms_norm.default, x, [shape[-1]], used, 1e-5)
    elif kind == "rope" and shape == (BATCH, TOKENS, HEADS, HEAD) and same:
        g.call(ops.rope, x, cos, sin)
    elif kind == "largest" and len(shape) == 3:
        g.call(aten.amax.default, x, [-1], True)
    elif kind == "sum" and len(shape) == 3:
        g.call(aten.sum.dim_IntList, x, [-1], True)


def _token_view(g: Grower, x: Node, shape: tuple[int, ...]) -> None:
    if shape == (BATCH, TOKENS, HIDDEN) and g.draw(st.booleans()):
        g.call(aten.unflatten.int, x, -1, [HEADS, HEAD])
    elif len(shape) == 4:
        g.call(aten.flatten.using_ints, x, -2, -1)
    elif shape[-1] > 1:
        half = shape[-1] // 2
        g.call(aten.narrow.default, x, -1, g.choice((0, shape[-1] - half)), half)


@st.composite
def token_graphs(draw: Draw, kinds: Sequence[str] = EXACT) -> GraphModule:
    """Floats of token rows."""
    dtype: torch.dtype = draw(st.sampled_from((torch.float32, torch.bfloat16)))  # type: ignore[assignment]
    g = Grower(
        draw,
        [
            ("w", fake((HIDDEN,), dtype)),
            ("mask", fake((BATCH, TOKENS, 1), torch.bool)),
            ("cos", fake((BATCH, TOKENS, HEAD // 2), dtype)),
            ("sin", fake((BATCH, TOKENS, HEAD // 2), dtype)),
            ("x", fake((BATCH, TOKENS, HIDDEN), dtype)),
            ("y", fake((BATCH, TOKENS, 2 * HIDDEN), dtype)),
            ("q", fake((BATCH, TOKENS, HEADS, HEAD), dtype)),
        ],
    )
    first, second = g.number(0, 1), g.values[5]
    g.call(aten.narrow.default, second, -1, first * HIDDEN, HIDDEN)
    for _ in range(g.number(3, 10)):
        grow_token(g, kinds, dtype)
    return g.finish()
