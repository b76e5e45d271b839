"""A chi-square test without dependencies, for the output law of generated modules (invariant I11)."""

from __future__ import annotations

import math
from collections.abc import Sequence

ALPHA = 1e-6
"""The level at which a law is rejected (design 03, I11). With a fixed seed, a right module passes always or
never."""

_LEAST_EXPECTED = 5.0


def survival(statistic: float, degrees: int) -> float:
    """Return P(X >= statistic) for X chi-square distributed: the upper incomplete gamma function Q(k/2, x/2).

    Series for small arguments, Lentz's continued fraction for large ones; relative error below 1e-10.
    """
    if degrees < 1:
        raise ValueError("a chi-square law needs at least one degree of freedom")
    a, x = degrees / 2.0, statistic / 2.0
    if x <= 0.0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1.0:
        return max(0.0, 1.0 - scale * _series(a, x))
    return scale * _continued_fraction(a, x)


def _series(a: float, x: float) -> float:
    term = total = 1.0 / a
    n = a
    while term > total * 1e-16:
        n += 1.0
        term *= x / n
        total += term
    return total


def _continued_fraction(a: float, x: float) -> float:
    tiny = 1e-300
    b = x + 1.0 - a
    c, d = 1.0 / tiny, 1.0 / b
    result = d
    for i in range(1, 10_000):
        step = -i * (i - a)
        b += 2.0
        d = step * d + b
        d = 1.0 / (d if abs(d) > tiny else tiny)
        c = b + step / c
        c = c if abs(c) > tiny else tiny
        result *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return result


def p_value(observed: Sequence[int], probabilities: Sequence[float]) -> float:
    """Return the chi-square p-value of counts against a law on the same categories.

    Categories with fewer than 5 expected counts are merged. Counts in a category of probability 0 give 0.0
    outright. Raises ValueError if fewer than two categories are left, since such a test could not fail.
    """
    total = sum(observed)
    bins: list[tuple[int, float]] = []
    pool_count, pool_mass = 0, 0.0
    for count, mass in zip(observed, probabilities, strict=True):
        if mass == 0.0:
            if count:
                return 0.0
        elif mass * total < _LEAST_EXPECTED:
            pool_count, pool_mass = pool_count + count, pool_mass + mass
        else:
            bins.append((count, mass * total))
    if pool_mass * total >= _LEAST_EXPECTED:
        bins.append((pool_count, pool_mass * total))
    elif pool_mass and bins:
        count, expected = bins.pop()
        bins.append((count + pool_count, expected + pool_mass * total))
    if len(bins) < 2:
        raise ValueError("fewer than two categories have enough expected counts: draw more samples")
    statistic = sum((count - expected) ** 2 / expected for count, expected in bins)
    return survival(statistic, len(bins) - 1)
