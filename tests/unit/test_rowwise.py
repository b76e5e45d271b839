"""Row-wise rules against execution: all tokens at once equals token by token, and what mixes tokens is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from specc.ir import ops
from specc.ir.op import REGISTRY
from specc.ir.rowwise import RULES, NotRowWise, RowView, result_axis

aten = torch.ops.aten
TOKENS = 4


@dataclass(frozen=True)
class T:
    """A tensor operand: sizes seen by one token, its token axis (None: the same for all), and what it holds."""

    shape: tuple[int, ...]
    axis: int | None = None
    kind: str = "float"
    high: int = 5


def rows(*shape: int, kind: str = "float", axis: int = 1, high: int = 5) -> T:
    """An operand with a token axis."""
    return T(shape, axis, kind, high)


def _draw(spec: T, generator: torch.Generator) -> torch.Tensor:
    shape = list(spec.shape)
    if spec.axis is not None:
        shape[spec.axis] = TOKENS
    if spec.kind == "int":
        return torch.randint(0, spec.high, shape, generator=generator)
    if spec.kind == "bool":
        return torch.randint(0, 2, shape, generator=generator) > 0
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def _map(items: Any, change: Any) -> Any:
    if isinstance(items, T):
        return change(items)
    if isinstance(items, (list, tuple)):
        return type(items)(_map(item, change) for item in items)
    return items


X, Y, I64, BOOL = rows(2, 1, 6), T((6,)), rows(2, 1, 6, kind="int"), rows(2, 1, 6, kind="bool")
UNARY = (
    "neg silu gelu relu sigmoid tanh exp sin cos abs isnan nan_to_num floor reciprocal softplus clone contiguous "
    "zeros_like ones_like _to_copy"
)
BINARY = "add.Tensor sub.Tensor mul.Tensor div.Tensor eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor"
SCALAR = (
    "add.Scalar sub.Scalar rsub.Scalar mul.Scalar div.Scalar eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar "
    "ge.Scalar remainder.Scalar pow.Tensor_Scalar"
)


def _op(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(aten, base), overload or "default")


CASES: list[tuple[Any, tuple[Any, ...]]] = [
    *((_op(name), (X,)) for name in UNARY.split()),
    *((_op(name), (X, Y)) for name in BINARY.split()),
    *((_op(name), (X, rows(1, 6, axis=0))) for name in BINARY.split()),
    *((_op(name), (X, 2)) for name in SCALAR.split()),
    *((_op(name), (rows(2, 1, 6, kind="int", high=9),)) for name in ("log", "sqrt", "rsqrt")),
    (aten.to.dtype, (X, torch.float32)),
    (aten.full_like.default, (X, 3)),
    (aten.where.self, (BOOL, X, Y)),
    (aten.where.ScalarSelf, (BOOL, 0.0, X)),
    (aten.where.ScalarOther, (BOOL, X, 0.0)),
    (aten.where.Scalar, (BOOL, 1, 0)),
    (aten.logical_and.default, (BOOL, BOOL)),
    (aten.logical_or.default, (BOOL, T((1, 1, 6), kind="bool"))),
    (aten.logical_not.default, (BOOL,)),
    (aten.bitwise_and.Tensor, (I64, I64)),
    (aten.bitwise_or.Tensor, (I64, I64)),
    (aten.bitwise_not.default, (I64,)),
    (aten.maximum.default, (X, X)),
    (aten.minimum.default, (X, Y)),
    (aten.clamp.default, (X, -1, 1)),
    (aten.clamp_min.default, (X, 0)),
    (aten.clamp_max.default, (X, 0)),
    (aten.masked_fill.Scalar, (X, BOOL, 7.0)),
    (aten.masked_fill.Tensor, (X, BOOL, T(()))),
    (aten.floor_divide.default, (X, Y)),
    (aten.remainder.Tensor, (X, Y)),
    (aten.linear.default, (X, T((3, 6)), T((3,)))),
    (aten.rms_norm.default, (X, [6], Y, 1e-6)),
    (aten.embedding.default, (T((5, 3)), rows(2, 1, kind="int"))),
    (aten.unflatten.int, (X, -1, [2, 3])),
    (aten.unflatten.int, (rows(6, 2, 1, axis=2), 0, [2, 3])),
    (aten.flatten.using_ints, (rows(2, 1, 3, 2), -2, -1)),
    (aten.flatten.using_ints, (rows(3, 2, 1, 5, axis=2), 0, 1)),
    (aten.transpose.int, (rows(2, 1, 3, 2), 1, 2)),
    (aten.transpose.int, (rows(2, 1, 3, 2), 2, 3)),
    (aten.transpose.int, (rows(2, 3, 1, 2, axis=2), 1, 2)),
    (aten.select.int, (rows(3, 2, 1, 6, axis=2), 0, 1)),
    (aten.select.int, (X, -1, 2)),
    (aten.squeeze.dim, (rows(2, 1, 1), 2)),
    (aten.squeeze.dim, (rows(1, 2, 1, 6, axis=2), 0)),
    (aten.squeeze.dim, (X, 2)),
    (aten.unsqueeze.default, (X, -1)),
    (aten.unsqueeze.default, (X, 1)),
    (aten.cat.default, ([X, X], -1)),
    (aten.gather.default, (X, 2, rows(2, 1, 3, kind="int"))),
    (aten.index.Tensor, (T((5, 3)), [rows(2, 1, kind="int")])),
    (aten.index.Tensor, (T((2, 5, 3)), [T((2, 1), kind="int", high=2), rows(2, 1, kind="int")])),
    (aten.narrow.default, (X, 2, 1, 3)),
    (aten.slice.Tensor, (X, 2, 1, 4)),
    (aten.split_with_sizes.default, (X, [2, 4], -1)),
    (aten.softmax.int, (X, -1)),
    (aten.log_softmax.int, (X, -1)),
    (aten.cumsum.default, (X, 0)),
    (aten.sort.default, (X, -1)),
    (aten.topk.default, (X, 2)),
    (aten.argmax.default, (X, -1)),
    (aten.argmax.default, (X, 0, True)),
    (aten.sum.dim_IntList, (rows(3, 2, 1, 6, axis=2), [0, 3])),
    (aten.sum.dim_IntList, (rows(3, 2, 1, 6, axis=2), [0, 1], True)),
    (aten.mean.dim, (X, [-1])),
    (aten.amax.default, (X, [0])),
    (aten.max.dim, (rows(3, 2, 1, axis=2), 0)),
    (aten.any.dim, (BOOL, -1)),
    (ops.rope_tables, (rows(2, 1, kind="int"), 8, 1e4, [], torch.float64)),
    (ops.rope, (rows(2, 1, 3, 8), rows(2, 1, 4), rows(2, 1, 4))),
    (
        ops.tree_attention,
        (
            rows(2, 1, 4, 8),
            T((2, 5, 2, 8)),
            T((2, 5, 2, 8)),
            T((2,), kind="int"),
            T((2, 3, 2, 8)),
            T((2, 3, 2, 8)),
            rows(2, 1, 3, kind="bool"),
            rows(2, 1, kind="int"),
            0.3,
            2,
            True,
        ),
    ),
]


def _view(spec: T) -> RowView:
    return RowView(spec.shape, spec.axis)


def _parts(value: Any) -> Sequence[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


@pytest.mark.parametrize(("target", "args"), CASES, ids=[f"{case[0]}-{n}" for n, case in enumerate(CASES)])
def test_all_tokens_at_once_equal_token_by_token(target: Any, args: tuple[Any, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    drawn: list[tuple[T, torch.Tensor]] = []

    def draw(spec: T) -> torch.Tensor:
        drawn.append((spec, _draw(spec, generator)))
        return drawn[-1][1]

    every = _parts(target(*_map(args, draw)))
    axis = result_axis(target, _map(args, _view), {})
    for token in range(TOKENS):
        tensors = iter(drawn)

        def part(_: T, token: int = token, tensors: Any = tensors) -> torch.Tensor:
            spec, value = next(tensors)
            return value if spec.axis is None else value.narrow(spec.axis, token, 1)

        single = _parts(target(*_map(args, part)))
        for all_rows, row in zip(every, single, strict=True):
            got = all_rows.narrow(axis, token, 1)
            assert got.shape == row.shape
            # Floats may round differently: vector lanes and summation order depend on the shape.
            torch.testing.assert_close(got, row, rtol=1e-14 if got.is_floating_point() else 0, atol=1e-14)


def test_every_rule_is_tried() -> None:
    assert set(RULES) <= {target for target, _ in CASES}


MIXING: list[tuple[Any, tuple[Any, ...], str]] = [
    (aten.softmax.int, (X, 1), "works along the token axis"),
    (aten.softmax.int, (X, -2), "works along the token axis"),
    (aten.sum.dim_IntList, (X, [1]), "reduces over the token axis"),
    (aten.sum.dim_IntList, (X, []), "reduces over all dims"),
    (aten.argmax.default, (X,), "reduces over all dims"),
    (aten.cumsum.default, (X, 1), "works along the token axis"),
    (aten.linear.default, (rows(2, 3, 1, axis=2), T((3, 1))), "contracts the token axis"),
    (aten.linear.default, (X, rows(3, 1)), "the weight or bias differs between tokens"),
    (aten.rms_norm.default, (rows(2, 1, 6), [1, 6], T((1, 6)), 1e-6), "normalises over the token axis"),
    (aten.embedding.default, (rows(5, 1), T((2,), kind="int")), "the embedding table differs between tokens"),
    (aten.flatten.using_ints, (X, 0, 1), "merges the token axis"),
    (aten.flatten.using_ints, (X,), "merges the token axis"),
    (aten.unflatten.int, (X, 1, [1, 1]), "works along the token axis"),
    (aten.select.int, (X, 1, 0), "works along the token axis"),
    (aten.cat.default, ([X, X], 1), "works along the token axis"),
    (aten.cat.default, ([X, T((2, 1, 6))], -1), "is the same for every token"),
    (aten.add.Tensor, (X, rows(2, 1, 1, 6)), "at different places"),
    (aten.add.Tensor, (X, T((2, 3, 6))), "has a size other than 1 along the token axis"),
    (aten.gather.default, (X, 1, I64), "works along the token axis"),
    (aten.index.Tensor, (X, [T((2,), kind="int")]), "the table differs between tokens"),
    (aten.index.Tensor, (T((5, 3)), [None, rows(2, 1, kind="int")]), "in front of the indices"),
    (aten.flip.default, (X, [-1]), "nothing is known"),
    (ops.rope, (rows(2, 1, 3, 8), T((2, 1, 4)), rows(2, 1, 4)), "`cos` needs the token axis as dim 1"),
    (ops.append_rows, (T((2, 5, 3)), rows(2, 1, 3), T((2,)), T((2,))), "`rows` differs between tokens"),
]


@pytest.mark.parametrize(("target", "args", "reason"), MIXING)
def test_what_mixes_tokens_is_refused_with_the_reason(target: Any, args: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(NotRowWise, match=reason):
        result_axis(target, _map(args, _view), {})


def test_declared_rows_are_operands() -> None:
    for declaration in REGISTRY.values():
        names = {argument.name for argument in declaration.overload._schema.arguments}
        assert declaration.rows <= names, declaration.name
