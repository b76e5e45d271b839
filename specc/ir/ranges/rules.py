"""The interval of an op's result from those of its operands: arithmetic, comparisons, constants, reductions.

Every rule is a function of a `Call` and an `Operands` view, registered under the op's base name; an op without a
rule gives every value of its dtype, so a missing rule costs precision and never soundness.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from specc.ir.ranges import interval as iv
from specc.ir.ranges.bounds import ZERO, Bound, integer, of_size
from specc.ir.ranges.calls import Call, dtype_of, shape_of, value
from specc.ir.ranges.interval import BOOL, EVERYTHING, Interval, exactly

Value = Interval | tuple["Value", ...] | None


class Operands(Protocol):
    """How rules see operand values."""

    def of(self, argument: Any) -> Interval:
        """The interval of an operand: a node, a number, a bool; everything where nothing is known."""

    def condition(self, argument: Any, holds: bool, wanted: Any) -> Interval:
        """The interval of `wanted` where `argument` (a bool node) is `holds`, elementwise."""


Rule = Callable[[Call, Operands], Value]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for ops of these base names."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def numel(argument: Any) -> Bound | None:
    """Number of elements of a tensor operand."""
    shape = shape_of(argument)
    if shape is None:
        return None
    total = integer(1)
    for size in shape:
        total = total * of_size(size)
    return total


def dim_size(argument: Any, dim: Any) -> Bound | None:
    """Size of a tensor operand along `dim` (1 for a scalar); None where it isn't known."""
    shape = shape_of(argument)
    if shape is None or not isinstance(dim, int):
        return None
    if not shape:
        return integer(1)
    return of_size(shape[dim]) if -len(shape) <= dim < len(shape) else None


def _binary(combine: Callable[[Interval, Interval], Interval]) -> Rule:
    def apply(call: Call, operands: Operands) -> Value:
        return combine(operands.of(call.first), operands.of(call.arg(1, "other", "min", "max")))

    return apply


for _name, _combine in {
    "mul": iv.multiply,
    "floor_divide": iv.floor_divide,
    "remainder": iv.remainder,
    "minimum": iv.minimum,
    "maximum": iv.maximum,
    "clamp_min": iv.maximum,
    "clamp_max": iv.minimum,
}.items():
    RULES[_name] = _binary(_combine)


@rule("add", "sub", "rsub")
def _add(call: Call, operands: Operands) -> Value:
    left, right = operands.of(call.first), operands.of(call.arg(1, "other"))
    alpha = call.arg(2, "alpha", default=1)
    if dtype_of(call.node) == torch.bool:
        return BOOL
    if not isinstance(alpha, int):
        return EVERYTHING
    if alpha != 1:
        right_is_scaled = call.name != "rsub"
        if right_is_scaled:
            right = iv.multiply(right, exactly(alpha))
        else:
            left = iv.multiply(left, exactly(alpha))
    if call.name == "add":
        return iv.add(left, right)
    return iv.subtract(left, right) if call.name == "sub" else iv.subtract(right, left)


@rule("div", "divide")
def _div(call: Call, operands: Operands) -> Value:
    left, right = operands.of(call.first), operands.of(call.arg(1, "other"))
    mode = call.kwargs.get("rounding_mode")
    if mode == "floor":
        return iv.floor_divide(left, right)
    return iv.truncate_divide(left, right) if mode == "trunc" else EVERYTHING


@rule("neg")
def _neg(call: Call, operands: Operands) -> Value:
    return iv.negate(operands.of(call.first))


@rule("abs")
def _abs(call: Call, operands: Operands) -> Value:
    return iv.absolute(operands.of(call.first))


@rule("relu")
def _relu(call: Call, operands: Operands) -> Value:
    return iv.maximum(operands.of(call.first), exactly(0))


@rule("sign", "sgn")
def _sign(call: Call, operands: Operands) -> Value:
    return iv.minimum(iv.maximum(operands.of(call.first), exactly(-1)), exactly(1)).plain()


@rule("clamp")
def _clamp(call: Call, operands: Operands) -> Value:
    result = operands.of(call.first)
    low, high = call.arg(1, "min"), call.arg(2, "max")
    if low is not None:
        result = iv.maximum(result, operands.of(low))
    return result if high is None else iv.minimum(result, operands.of(high))


@rule("where")
def _where(call: Call, operands: Operands) -> Value:
    condition = call.arg(0, "condition")
    if len(call.args) == 1:
        return None
    chosen = operands.of(condition).constant
    yes = operands.condition(condition, True, call.arg(1, "self", "input"))
    no = operands.condition(condition, False, call.arg(2, "other"))
    if chosen is not None:
        return yes if chosen else no
    return iv.join(yes, no)


@rule("masked_fill")
def _masked_fill(call: Call, operands: Operands) -> Value:
    mask = call.arg(1, "mask")
    return iv.join(operands.condition(mask, False, call.first), operands.of(call.arg(2, "value")))


def _decide(name: str, left: Interval, right: Interval) -> bool | None:
    """The outcome of a comparison where the intervals leave only one."""
    if name in ("gt", "ge"):
        return _decide("lt" if name == "gt" else "le", right, left)
    before, after = left.high <= right.low - integer(1), right.high <= left.low - integer(1)
    if name == "lt":
        return True if before else False if right.high <= left.low else None
    if name == "le":
        return True if left.high <= right.low else False if after else None
    if before or after:
        return name == "ne"
    if left.constant is not None and left.constant == right.constant:
        return name == "eq"
    return None


@rule("lt", "le", "gt", "ge", "eq", "ne")
def _compare(call: Call, operands: Operands) -> Value:
    sides = (call.first, call.arg(1, "other"))
    if any(dtype is not None and dtype.is_floating_point for dtype in map(dtype_of, sides)):
        return BOOL
    if any(isinstance(side, float) for side in sides):
        return BOOL
    outcome = _decide(call.name, operands.of(sides[0]), operands.of(sides[1]))
    return BOOL if outcome is None else exactly(int(outcome))


@rule("logical_and", "logical_or", "logical_not", "logical_xor", "all", "any", "isin", "not_", "isnan", "isinf")
def _truth(call: Call, operands: Operands) -> Value:
    return BOOL


@rule("bitwise_and", "__and__", "and")
def _bitwise_and(call: Call, operands: Operands) -> Value:
    left, right = operands.of(call.first), operands.of(call.arg(1, "other"))
    sides = [side.high for side in (left, right) if side.low >= ZERO]
    if not sides:
        return EVERYTHING
    high = sides[0] if len(sides) == 1 or sides[0] <= sides[1] else sides[1]
    return Interval(ZERO, high)


@rule("bitwise_not")
def _bitwise_not(call: Call, operands: Operands) -> Value:
    if dtype_of(call.node) == torch.bool:
        return BOOL
    return iv.subtract(exactly(-1), operands.of(call.first))


@rule("bitwise_right_shift", "rshift", "__rshift__")
def _shift_right(call: Call, operands: Operands) -> Value:
    amount = operands.of(call.arg(1, "other")).constant
    if amount is None or not 0 <= amount < 62:
        return EVERYTHING
    return iv.floor_divide(operands.of(call.first), exactly(1 << amount))


@rule("bitwise_left_shift", "lshift", "__lshift__")
def _shift_left(call: Call, operands: Operands) -> Value:
    amount = operands.of(call.arg(1, "other")).constant
    if amount is None or not 0 <= amount < 62:
        return EVERYTHING
    return iv.multiply(operands.of(call.first), exactly(1 << amount))


@rule("arange", "range")
def _arange(call: Call, operands: Operands) -> Value:
    numbers = [*call.args]
    start = call.kwargs.get("start", numbers[0] if len(numbers) > 1 else 0)
    end = call.kwargs.get("end", numbers[1] if len(numbers) > 1 else numbers[0] if numbers else 0)
    step = call.kwargs.get("step", numbers[2] if len(numbers) > 2 else 1)
    if not isinstance(step, int) or isinstance(start, float) or isinstance(end, float):
        return EVERYTHING
    first, last = operands.of(start), operands.of(end)
    if step > 0:
        return Interval(first.low, last.high - integer(1))
    return Interval(last.low + integer(1), first.high)


@rule("zeros", "zeros_like", "new_zeros")
def _zeros(call: Call, operands: Operands) -> Value:
    return exactly(0)


@rule("ones", "ones_like", "new_ones")
def _ones(call: Call, operands: Operands) -> Value:
    return exactly(1)


@rule("full", "full_like", "fill")
def _full(call: Call, operands: Operands) -> Value:
    return operands.of(call.arg(1, "fill_value", "value"))


@rule("new_full")
def _new_full(call: Call, operands: Operands) -> Value:
    return operands.of(call.arg(2, "fill_value"))


@rule("scalar_tensor", "item", "_local_scalar_dense", "lift_fresh_copy")
def _scalar(call: Call, operands: Operands) -> Value:
    return operands.of(call.arg(0, "s", "self", "input"))


@rule("eye", "one_hot")
def _bit(call: Call, operands: Operands) -> Value:
    return BOOL


@rule("randint")
def _randint(call: Call, operands: Operands) -> Value:
    numbers = [item for item in call.args if isinstance(item, int)]
    low = call.kwargs.get("low", numbers[0] if len(numbers) > 1 else 0)
    high = call.kwargs.get("high", numbers[-1] if numbers else None)
    return EVERYTHING if high is None else iv.between(low, high - 1)


def _counted(call: Call) -> Bound | None:
    """How many elements a reduction takes together."""
    dims = call.arg(1, "dim", "axis")
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return numel(call.first)
    total: Bound | None = integer(1)
    for dim in dims if isinstance(dims, (list, tuple)) else [dims]:
        size = dim_size(call.first, dim)
        total = None if size is None or total is None else total * size
    return total


@rule("sum", "count_nonzero")
def _sum(call: Call, operands: Operands) -> Value:
    count = _counted(call)
    if count is None:
        return EVERYTHING
    each = BOOL if call.name == "count_nonzero" else operands.of(call.first)
    return iv.scale_by_count(each, count)


@rule("cumsum")
def _cumsum(call: Call, operands: Operands) -> Value:
    count = dim_size(call.first, call.arg(1, "dim"))
    if count is None:
        return EVERYTHING
    each = operands.of(call.first)
    return iv.join(each.plain(), iv.scale_by_count(each, count))


@rule("cumprod")
def _cumprod(call: Call, operands: Operands) -> Value:
    each = operands.of(call.first)
    return each.plain() if each.within(BOOL) else EVERYTHING


@rule("argmax", "argmin")
def _argmax(call: Call, operands: Operands) -> Value:
    dim = call.arg(1, "dim")
    count = numel(call.first) if dim is None else dim_size(call.first, dim)
    return EVERYTHING if count is None else iv.up_to(count)


@rule("argsort", "multinomial")
def _argsort(call: Call, operands: Operands) -> Value:
    last = -1 if call.name == "multinomial" else call.arg(1, "dim", default=-1)
    if not isinstance(last, int) or isinstance(last, bool):
        last = call.kwargs.get("dim", -1)
    count = dim_size(call.first, last)
    return EVERYTHING if count is None else iv.up_to(count)


def _indices_of(call: Call, dim: Any) -> Interval:
    count = dim_size(call.first, dim)
    return EVERYTHING if count is None else iv.up_to(count)


@rule("topk", "kthvalue")
def _topk(call: Call, operands: Operands) -> Value:
    return operands.of(call.first), _indices_of(call, call.arg(2, "dim", default=-1))


@rule("sort")
def _sort(call: Call, operands: Operands) -> Value:
    dim = call.kwargs.get("dim", next((item for item in call.args[1:] if type(item) is int), -1))
    return operands.of(call.first), _indices_of(call, dim)


@rule("max", "min", "amax", "amin", "cummax", "cummin")
def _extreme(call: Call, operands: Operands) -> Value:
    second = call.arg(1, "dim", "other")
    if dtype_of(second) is not None:
        both = operands.of(call.first), operands.of(second)
        return iv.maximum(*both) if call.name == "max" else iv.minimum(*both)
    if call.name in ("amax", "amin") or second is None:
        return operands.of(call.first)
    return operands.of(call.first), _indices_of(call, second)


@rule("searchsorted", "bucketize")
def _searchsorted(call: Call, operands: Operands) -> Value:
    edges = call.first if call.name == "searchsorted" else call.arg(1, "boundaries")
    count = dim_size(edges, -1)
    return EVERYTHING if count is None else Interval(ZERO, count)


@rule("sym_size", "size", "numel", "len", "sym_numel", "getattr")
def _size(call: Call, operands: Operands) -> Value:
    fake = value(call.node)
    if isinstance(fake, (int, torch.SymInt)) and not isinstance(fake, bool):
        size = of_size(fake)
        return Interval(size, size)
    if isinstance(fake, torch.Size):
        return tuple(Interval(of_size(size), of_size(size)) for size in fake)
    return EVERYTHING
