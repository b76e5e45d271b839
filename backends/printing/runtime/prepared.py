"""Weights that are not used as they are stored: what the loader makes of a tensor, once."""

from __future__ import annotations

from torch import Tensor


def prepared(form: str, value: Tensor) -> Tensor:
    """A stored tensor, in the type that is wanted, in a form of WEIGHTS.

    "" and "wide": as it is; "negative_exp": -exp(x); "plus_one": x + 1; "taps_first": [C,1,W]
    as [W,1,C].
    """
    if form == "negative_exp":
        return -value.exp()
    if form == "plus_one":
        return value + 1.0
    return value.permute(2, 1, 0).contiguous() if form == "taps_first" else value


def stored_shape(form: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a stored tensor whose prepared form has this shape."""
    return shape[::-1] if form == "taps_first" else shape
