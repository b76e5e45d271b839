"""Which ops work row by row along a token axis: if they do, one call on all tokens' rows stacked along that axis
equals one call per token.

`result_axis(target, args, kwargs, view)` says where the token axis of the result is when some operands carry one,
or why the op can't be batched. Operators of ours declare it (`OpInfo.rows`, always dim 1); the table here covers
the aten ops that graphs are made of. An op that is in neither is refused, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specc.ir.op import OpInfo, info

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class RowView:
    """A tensor operand: its number of dims, the dim of the token axis (None: the same for every token), and the
    sizes seen by one token (1 along the token axis)."""

    shape: tuple[int, ...]
    axis: int | None

    @property
    def ndim(self) -> int:
        """Number of dims, the token axis included."""
        return len(self.shape)


class NotRowWise(Exception):
    """The op mixes tokens, or nothing is known of it; the message is the reason."""


Rule = Callable[[Sequence[Any], Mapping[str, Any]], int]


def _dim(dim: int, ndim: int) -> int:
    return dim % ndim if ndim else 0


def _axis(operand: Any, what: str = "its input") -> int:
    if not isinstance(operand, RowView) or operand.axis is None:
        raise NotRowWise(f"{what} is the same for every token while another operand is not")
    return operand.axis


def _uniform(operands: Sequence[Any], what: str) -> None:
    if any(isinstance(operand, RowView) and operand.axis is not None for operand in operands):
        raise NotRowWise(f"{what} differs between tokens")


def _get(args: Sequence[Any], kwargs: Mapping[str, Any], position: int, name: str, default: Any = None) -> Any:
    return args[position] if len(args) > position else kwargs.get(name, default)


def broadcast_axis(operands: Sequence[Any]) -> int:
    """Token axis of a broadcasting op. All carriers must have it at one place counted from the right, and the other
    operands size 1 (or nothing) there."""
    views = [operand for operand in operands if isinstance(operand, RowView)]
    places = {view.ndim - view.axis for view in views if view.axis is not None}
    if len(places) != 1:
        raise NotRowWise("its operands carry the token axis at different places")
    place = places.pop()
    for view in views:
        if view.axis is None and view.ndim >= place and view.shape[view.ndim - place] != 1:
            raise NotRowWise("an operand that is the same for every token has a size other than 1 along the token axis")
    return max(view.ndim for view in views) - place


def _flat(items: Sequence[Any]) -> list[Any]:
    flat: list[Any] = []
    for item in items:
        flat.extend(_flat(item) if isinstance(item, (list, tuple)) else [item])
    return flat


def _pointwise(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    return broadcast_axis(_flat([*args, *kwargs.values()]))


def _keep(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """One input, same shape out."""
    return _axis(args[0])


def _linear(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    axis = _axis(args[0])
    _uniform(args[1:], "the weight or bias")
    if axis == args[0].ndim - 1:
        raise NotRowWise("it contracts the token axis")
    return axis


def _rms_norm(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    axis = _axis(args[0])
    _uniform(args[2:], "the weight")
    if axis >= args[0].ndim - len(args[1]):
        raise NotRowWise("it normalises over the token axis")
    return axis


def _embedding(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    _uniform(args[:1], "the embedding table")
    return _axis(args[1])


def _other_dim(args: Sequence[Any], kwargs: Mapping[str, Any], position: int, default: int | None = None) -> int:
    """Axis of input 0, given that the op works along another dim."""
    axis = _axis(args[0])
    dim = _get(args, kwargs, position, "dim", default)
    if dim is None:
        raise NotRowWise("it reduces over all dims, the token axis too")
    if _dim(dim, args[0].ndim) == axis:
        raise NotRowWise("it works along the token axis")
    return axis


def _along(position: int, default: int | None = None) -> Rule:
    """Ops along one dim that keep all dims: softmax, sort, cumsum, topk, narrow, slice, split."""
    return lambda args, kwargs: _other_dim(args, kwargs, position, default)


def _reduce(position: int, keepdim_position: int) -> Rule:
    def rule(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        axis = _axis(args[0])
        dims = _get(args, kwargs, position, "dim")
        if dims is None or dims == []:
            raise NotRowWise("it reduces over all dims, the token axis too")
        wanted = [_dim(dim, args[0].ndim) for dim in (dims if isinstance(dims, (list, tuple)) else [dims])]
        if axis in wanted:
            raise NotRowWise("it reduces over the token axis")
        if _get(args, kwargs, keepdim_position, "keepdim", False):
            return axis
        return axis - sum(dim < axis for dim in wanted)

    return rule


def _select(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    axis = _other_dim(args, kwargs, 1)
    return axis - (_dim(args[1], args[0].ndim) < axis)


def _squeeze(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    axis = _other_dim(args, kwargs, 1)
    dim = _dim(args[1], args[0].ndim)
    return axis - (dim < axis and args[0].shape[dim] == 1)


def _unsqueeze(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    axis = _axis(args[0])
    return axis + (_dim(args[1], args[0].ndim + 1) <= axis)


def _unflatten(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    axis = _other_dim(args, kwargs, 1)
    return axis + (len(args[2]) - 1 if _dim(args[1], args[0].ndim) < axis else 0)


def _flatten(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    axis = _axis(args[0])
    first = _dim(_get(args, kwargs, 1, "start_dim", 0), args[0].ndim)
    last = _dim(_get(args, kwargs, 2, "end_dim", -1), args[0].ndim)
    if first <= axis <= last and first != last:
        raise NotRowWise("it merges the token axis with another dim")
    return axis - (last - first if last < axis else 0)


def _transpose(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    axis = _axis(args[0])
    first, second = _dim(args[1], args[0].ndim), _dim(args[2], args[0].ndim)
    return second if axis == first else first if axis == second else axis


def _cat(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    parts = list(args[0])
    axes = {_axis(part, "a part") for part in parts}
    if len(axes) != 1:
        raise NotRowWise("its parts carry the token axis at different places")
    axis = axes.pop()
    if _dim(_get(args, kwargs, 1, "dim", 0), parts[0].ndim) == axis:
        raise NotRowWise("it works along the token axis")
    return axis


def _gather(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    axis = _other_dim(args, kwargs, 1)
    if _axis(args[2], "the index") != axis:
        raise NotRowWise("its index carries the token axis at another place")
    return axis


def _index(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """table[i, j, ...] of one table for all tokens: the indices come first in the result, broadcast."""
    _uniform(args[:1], "the table")
    if any(index is None for index in args[1]):
        raise NotRowWise("it keeps a dim of the table in front of the indices")
    return broadcast_axis(args[1])


_POINTWISE = (
    "add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar neg.default "
    "silu.default gelu.default relu.default softplus.default sigmoid.default tanh.default exp.default log.default "
    "sqrt.default rsqrt.default sin.default cos.default abs.default reciprocal.default pow.Tensor_Scalar floor.default "
    "eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar gt.Tensor gt.Scalar ge.Tensor "
    "ge.Scalar where.self where.ScalarSelf where.ScalarOther where.Scalar logical_and.default logical_or.default "
    "logical_not.default bitwise_and.Tensor bitwise_or.Tensor bitwise_not.default maximum.default minimum.default "
    "clamp.default clamp_min.default clamp_max.default masked_fill.Scalar masked_fill.Tensor "
    "floor_divide.default remainder.Scalar remainder.Tensor isnan.default nan_to_num.default"
)
_KEEP = (
    "clone.default contiguous.default to.dtype _to_copy.default zeros_like.default ones_like.default full_like.default"
)


def _overload(text: str) -> torch._ops.OpOverload:
    name, overload = text.split(".")
    found: torch._ops.OpOverload = getattr(getattr(aten, name), overload)
    return found


RULES: Mapping[object, Rule] = {
    **{_overload(text): _pointwise for text in _POINTWISE.split()},
    **{_overload(text): _keep for text in _KEEP.split()},
    aten.linear.default: _linear,
    aten.rms_norm.default: _rms_norm,
    aten.embedding.default: _embedding,
    aten.unflatten.int: _unflatten,
    aten.flatten.using_ints: _flatten,
    aten.transpose.int: _transpose,
    aten.select.int: _select,
    aten.squeeze.dim: _squeeze,
    aten.unsqueeze.default: _unsqueeze,
    aten.cat.default: _cat,
    aten.gather.default: _gather,
    aten.index.Tensor: _index,
    aten.narrow.default: _along(1),
    aten.slice.Tensor: _along(1, 0),
    aten.split_with_sizes.default: _along(2, 0),
    aten.softmax.int: _along(1),
    aten.log_softmax.int: _along(1),
    aten.cumsum.default: _along(1),
    aten.sort.default: _along(1, -1),
    aten.topk.default: _along(2, -1),
    aten.argmax.default: _reduce(1, 2),
    aten.sum.dim_IntList: _reduce(1, 2),
    aten.mean.dim: _reduce(1, 2),
    aten.amax.default: _reduce(1, 2),
    aten.max.dim: _reduce(1, 2),
    aten.any.dim: _reduce(1, 2),
}


def _declared(declaration: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    names = [argument.name for argument in declaration.overload._schema.arguments]
    for name, operand in [*zip(names, args, strict=False), *kwargs.items()]:
        if not isinstance(operand, RowView):
            continue
        if name in declaration.rows and operand.axis != 1:
            place = "is the same for every token" if operand.axis is None else f"has it as dim {operand.axis}"
            raise NotRowWise(f"operand `{name}` needs the token axis as dim 1, but {place}")
        if name not in declaration.rows and operand.axis is not None:
            raise NotRowWise(f"operand `{name}` differs between tokens, and the op is not row-wise in it")
    return 1


def result_axis(target: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """The token axis of the op's result (of each of its results), where tensor operands are `RowView`s and at least
    one carries a token axis. Raises NotRowWise with the reason where the op can't be batched."""
    declaration = info(target)
    if declaration is not None:
        return _declared(declaration, args, kwargs)
    rule = RULES.get(target)
    if rule is None:
        raise NotRowWise("nothing is known of how it treats the token axis")
    return rule(args, kwargs)
