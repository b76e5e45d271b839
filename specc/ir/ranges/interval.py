"""Sets of integers by their two ends, with the meaning that -1 has in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce

import torch

from specc.ir.port import Sentinel, ValueRange
from specc.ir.ranges.bounds import (
    INFINITY,
    MINUS_INFINITY,
    ZERO,
    Bound,
    above,
    below,
    integer,
    of_declared,
)

ONE = integer(1)


@dataclass(frozen=True, slots=True)
class Interval:
    """Every integer x with low <= x <= high. `sentinels` says what -1 stands for, where that was declared."""

    low: Bound
    high: Bound
    sentinels: frozenset[Sentinel] = field(default=frozenset())

    def __post_init__(self) -> None:
        """Where -1 is impossible it has no meaning."""
        if self.sentinels and self.low >= ZERO:
            object.__setattr__(self, "sentinels", frozenset())

    def __str__(self) -> str:
        meaning = f" (-1: {', '.join(sorted(self.sentinels))})" if self.sentinels else ""
        return f"[{self.low}, {self.high}]{meaning}"

    @property
    def constant(self) -> int | None:
        """The only value, where there is one."""
        return self.low.constant if self.low == self.high else None

    @property
    def is_empty(self) -> bool:
        """No value is possible (a branch that is never taken)."""
        return not self.low <= self.high and self.high <= self.low and self.low != self.high

    def within(self, other: Interval) -> bool:
        """Every value lies in `other`, for all sizes."""
        return other.low <= self.low and self.high <= other.high

    def plain(self) -> Interval:
        """The same numbers without a meaning of -1 (after arithmetic)."""
        return replace(self, sentinels=frozenset()) if self.sentinels else self


EVERYTHING = Interval(MINUS_INFINITY, INFINITY)
BOOL = Interval(ZERO, ONE)


@lru_cache(maxsize=4096)
def exactly(value: int) -> Interval:
    """One value."""
    return Interval(integer(value), integer(value))


def between(low: int | Bound, high: int | Bound) -> Interval:
    """From two ends."""
    first = integer(low) if isinstance(low, int) else low
    return Interval(first, integer(high) if isinstance(high, int) else high)


def up_to(size: Bound) -> Interval:
    """[0, size - 1]: the legal indices of a dim."""
    return Interval(ZERO, size - ONE)


def declared(value: ValueRange | tuple[int, int]) -> Interval:
    """A declared range; its ends may be written with the symbolic sizes."""
    if not isinstance(value, ValueRange):
        return Interval(of_declared(value[0]), of_declared(value[1]))
    meaning: frozenset[Sentinel] = frozenset([value.sentinel] if value.sentinel else [])
    return Interval(of_declared(value.low), of_declared(value.high), meaning)


def join(left: Interval, right: Interval) -> Interval:
    """The smallest interval around both."""
    if left.is_empty:
        return right
    if right.is_empty:
        return left
    return Interval(below(left.low, right.low), above(left.high, right.high), left.sentinels | right.sentinels)


def join_all(parts: list[Interval]) -> Interval:
    """The smallest interval around all of them."""
    return reduce(join, parts) if parts else EVERYTHING


def meet(left: Interval, right: Interval) -> Interval:
    """Values in both: for each end the tighter one where they compare, else `left`'s."""
    low = right.low if left.low <= right.low else left.low
    high = right.high if right.high <= left.high else left.high
    return Interval(low, high, left.sentinels)


def add(left: Interval, right: Interval) -> Interval:
    """x + y."""
    return Interval(left.low + right.low, left.high + right.high)


def negate(value: Interval) -> Interval:
    """-x."""
    return Interval(-value.high, -value.low)


def subtract(left: Interval, right: Interval) -> Interval:
    """x - y."""
    return add(left, negate(right))


def multiply(left: Interval, right: Interval) -> Interval:
    """x * y, from the four corners. An end of unknown sign times an infinity gives everything."""
    ends = (left.low, left.high, right.low, right.high)
    if any(end.infinite for end in ends) and not all(end <= ZERO or end >= ZERO for end in ends):
        return EVERYTHING
    corners = [first * second for first in (left.low, left.high) for second in (right.low, right.high)]
    return Interval(reduce(below, corners), reduce(above, corners))


def _divide_end(end: Bound, divisor: int, *, up: bool) -> Bound:
    """floor(end / divisor) for a positive divisor; a bound on it where the end is symbolic."""
    if end.infinite:
        return end
    if end.constant is not None:
        return integer(end.constant // divisor)
    if all(factor % divisor == 0 for _, factor in end.terms):
        return Bound(tuple((monomial, factor // divisor) for monomial, factor in end.terms))
    rounded = tuple((monomial, -(-factor // divisor) if up else factor // divisor) for monomial, factor in end.terms)
    return Bound(tuple(term for term in rounded if term[1]))


def floor_divide(left: Interval, right: Interval) -> Interval:
    """x // y (towards minus infinity)."""
    divisor = right.constant
    if divisor is not None and divisor < 0:
        return floor_divide(negate(left), exactly(-divisor))
    if divisor:
        return Interval(_divide_end(left.low, divisor, up=False), _divide_end(left.high, divisor, up=True))
    if right.low >= ONE:
        return Interval(below(left.low, ZERO), above(left.high, ZERO))
    return EVERYTHING


def truncate_divide(left: Interval, right: Interval) -> Interval:
    """x / y towards zero: floor division, and one more for negative x."""
    divided = floor_divide(left, right)
    if left.low >= ZERO and right.low >= ZERO:
        return divided
    return Interval(divided.low, divided.high + ONE)


def remainder(left: Interval, right: Interval) -> Interval:
    """Python's x % y: the sign of y. [0, y - 1] for positive y, x itself where it is already there."""
    if right.low >= ONE:
        whole = Interval(ZERO, right.high - ONE)
        return left.plain() if left.low >= ZERO and left.high <= right.low - ONE else whole
    if right.high <= integer(-1):
        return Interval(right.low + ONE, ZERO)
    return EVERYTHING


def minimum(left: Interval, right: Interval) -> Interval:
    """min(x, y)."""
    return _ordered(Interval(below(left.low, right.low), _tighter(left.high, right.high, smallest=True)), left, right)


def maximum(left: Interval, right: Interval) -> Interval:
    """max(x, y)."""
    return _ordered(Interval(_tighter(left.low, right.low, smallest=False), above(left.high, right.high)), left, right)


def _tighter(left: Bound, right: Bound, *, smallest: bool) -> Bound:
    """min or max of two ends where either one is a sound answer: the right one if they don't compare."""
    if left <= right:
        return left if smallest else right
    return right if smallest or not right <= left else left


def _ordered(result: Interval, left: Interval, right: Interval) -> Interval:
    return replace(result, sentinels=left.sentinels | right.sentinels)


def absolute(value: Interval) -> Interval:
    """|x|."""
    if value.low >= ZERO:
        return value
    if value.high <= ZERO:
        return negate(value)
    return Interval(ZERO, above(-value.low, value.high))


def scale_by_count(value: Interval, count: Bound) -> Interval:
    """The sum of `count` values."""
    return multiply(value, Interval(count, count))


_LIMITS: dict[torch.dtype, Interval] = {
    dtype: between(torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
} | {torch.bool: BOOL}


def limits(dtype: torch.dtype | None) -> Interval:
    """All values of an integer dtype; everything for a Python int or an unknown one."""
    return EVERYTHING if dtype is None else _LIMITS.get(dtype, EVERYTHING)


def fit(value: Interval, dtype: torch.dtype | None) -> Interval:
    """The interval, or the dtype's whole range where it could overflow (tensors wrap around silently).

    Symbolic ends fit int32 and int64: they are sizes of tensors.
    """
    whole = limits(dtype)
    if value.low.infinite or value.high.infinite:
        return whole
    wide = dtype in (torch.int32, torch.int64)
    low = whole.low <= value.low or (wide and value.low.constant is None)
    high = value.high <= whole.high or (wide and value.high.constant is None)
    return value if low and high else whole


def widen(before: Interval, after: Interval, thresholds: Sequence[int] = ()) -> Interval:
    """Ends that still move go to the next of `thresholds`, -1 and 0, or to infinity (widening with thresholds)."""
    steps = [integer(step) for step in sorted({*thresholds, -1, 0})]
    low, high = before.low, before.high
    if not before.low <= after.low:
        low = next((step for step in reversed(steps) if step <= after.low), MINUS_INFINITY)
    if not after.high <= before.high:
        high = next((step for step in steps if after.high <= step), INFINITY)
    return Interval(low, high, before.sentinels | after.sentinels)
