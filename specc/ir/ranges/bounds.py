"""Ends of intervals: integers, infinities, and polynomials in the sizes that a program leaves open.

The batch B and the chunk length T are carried through fake tensors as primes (`specc.ir.dims`); a graph exported
with dynamic shapes has `SymInt` sizes. Both become named symbols here, each at least 1, so that `index <= T - 1`
is proved for every T and never because a placeholder number happens to be large.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from specc.ir.dims import BATCH, CHUNK

Monomial = tuple[str, ...]
Terms = dict[Monomial, int]
_SYMBOLS = ((BATCH, "B"), (CHUNK, "T"))


@dataclass(frozen=True, slots=True)
class Bound:
    """A polynomial with integer coefficients over symbols >= 1, or an infinity (`infinite` is -1 or 1)."""

    terms: tuple[tuple[Monomial, int], ...] = ()
    infinite: int = 0

    @property
    def constant(self) -> int | None:
        """The value where it is a plain integer, else None."""
        if self.infinite:
            return None
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and self.terms[0][0] == () else None

    def __add__(self, other: Bound) -> Bound:
        if self.infinite or other.infinite:
            return _infinity(self.infinite or other.infinite)
        first, second = self.constant, other.constant
        if first is not None and second is not None:
            return integer(first + second)
        total = dict(self.terms)
        for monomial, factor in other.terms:
            total[monomial] = total.get(monomial, 0) + factor
        return _make(total)

    def __neg__(self) -> Bound:
        return Bound(tuple((monomial, -factor) for monomial, factor in self.terms), -self.infinite)

    def __sub__(self, other: Bound) -> Bound:
        return self + -other

    def __mul__(self, other: Bound) -> Bound:
        if self == ZERO or other == ZERO:
            return ZERO
        if self.infinite or other.infinite:
            return _infinity(_sign(self) * _sign(other))
        first, second = self.constant, other.constant
        if first is not None and second is not None:
            return integer(first * second)
        total: Terms = {}
        for left, factor in self.terms:
            for right, scale in other.terms:
                monomial = tuple(sorted(left + right))
                total[monomial] = total.get(monomial, 0) + factor * scale
        return _make(total)

    def __le__(self, other: Bound) -> bool:
        """True only where it holds for all values of the symbols."""
        if self.infinite < 0 or other.infinite > 0:
            return True
        if self.infinite or other.infinite:
            return False
        first, second = self.constant, other.constant
        if first is not None and second is not None:
            return first <= second
        return _never_negative((other - self).terms)

    def __ge__(self, other: Bound) -> bool:
        return other <= self

    def __str__(self) -> str:
        if self.infinite:
            return "-inf" if self.infinite < 0 else "inf"
        text = ""
        for monomial, factor in sorted(self.terms, key=lambda term: (-len(term[0]), term[0])):
            number = str(abs(factor)) if factor not in (1, -1) or not monomial else ""
            part = "*".join(([number] if number else []) + list(monomial))
            sign = ("-" if factor < 0 else "") if not text else (" - " if factor < 0 else " + ")
            text += sign + part
        return text or "0"


def _infinity(sign: int) -> Bound:
    return MINUS_INFINITY if sign < 0 else INFINITY


def _make(total: Terms) -> Bound:
    return Bound(tuple(sorted((monomial, factor) for monomial, factor in total.items() if factor)))


def _sign(bound: Bound) -> int:
    """Sign of a bound that is multiplied with an infinity; 1 where it isn't known (callers take both corners)."""
    if bound.infinite:
        return bound.infinite
    return -1 if bound <= ZERO else 1


@lru_cache(maxsize=4096)
def _never_negative(terms: tuple[tuple[Monomial, int], ...]) -> bool:
    """With every symbol s = 1 + s', all coefficients of the expansion in s' >= 0 are non-negative."""
    shifted: Terms = {}
    for monomial, factor in terms:
        for size in range(len(monomial) + 1):
            for chosen in combinations(monomial, size):
                shifted[chosen] = shifted.get(chosen, 0) + factor
    return all(factor >= 0 for factor in shifted.values())


ZERO = Bound()
INFINITY = Bound((), 1)
MINUS_INFINITY = Bound((), -1)


@lru_cache(maxsize=4096)
def integer(value: int) -> Bound:
    """A plain number."""
    return Bound((((), value),)) if value else ZERO


def symbol(name: str) -> Bound:
    """An unknown size >= 1."""
    return Bound((((name,), 1),))


def of_size(size: int | torch.SymInt) -> Bound:
    """A dimension of a fake tensor: multiples of the primes of `dims` and `SymInt` expressions are symbolic.

    An expression that isn't a polynomial with integer coefficients becomes a symbol of its own.
    """
    if isinstance(size, torch.SymInt):
        return _of_expression(size)
    monomial: list[str] = []
    rest = int(size)
    for prime, name in _SYMBOLS:
        while rest and rest % prime == 0:
            monomial.append(name)
            rest //= prime
    return Bound(((tuple(sorted(monomial)), rest),)) if monomial else integer(rest)


def _of_expression(size: torch.SymInt) -> Bound:
    """Backed symbols are sizes of inputs, at least 1; unbacked ones come from data (`nonzero`), and may be 0."""
    expression = size.node.expr
    if expression.is_Integer:
        return integer(int(expression))
    unbacked = {str(name) for name in free_unbacked_symbols(size)}
    whole = symbol(f"({expression})") - integer(1 if unbacked else 0)
    names = sorted(expression.free_symbols, key=str)
    if not expression.is_polynomial(*names):
        return whole
    total = ZERO
    for powers, factor in expression.as_poly(*names).terms():
        if not factor.is_Integer:
            return whole
        product = integer(int(factor))
        for name, power in zip(names, powers, strict=True):
            one = symbol(str(name)) - integer(1) if str(name) in unbacked else symbol(str(name))
            for _ in range(power):
                product = product * one
        total = total + product
    return total


def of_declared(value: int) -> Bound:
    """A number of a declared range, which may be written with the primes: T, 2*B, 2*B - 1, and T + 1."""
    for prime, name in _SYMBOLS:
        if abs(value - prime) == 1 and (name == "T" or value < prime):
            return symbol(name) + integer(value - prime)
    if value > BATCH and (value + 1) % BATCH == 0:
        return of_size(value + 1) - integer(1)
    return of_size(value)


def below(left: Bound, right: Bound) -> Bound:
    """The smaller of the two where they compare, else a bound below both (sound as a lower end)."""
    if left <= right:
        return left
    if right <= left:
        return right
    return _each(left, right, smallest=True)


def above(left: Bound, right: Bound) -> Bound:
    """The larger of the two where they compare, else a bound above both (sound as an upper end)."""
    if left <= right:
        return right
    if right <= left:
        return left
    return _each(left, right, smallest=False)


def _each(left: Bound, right: Bound, *, smallest: bool) -> Bound:
    """Coefficient by coefficient: every monomial is positive, so the result bounds both."""
    first, second = dict(left.terms), dict(right.terms)
    pick = min if smallest else max
    return _make({monomial: pick(first.get(monomial, 0), second.get(monomial, 0)) for monomial in first | second})
