"""Weights that are not used as they are stored: what the loader makes of a tensor, once."""

from __future__ import annotations

import torch
from torch import Tensor

BY_PART = "by_part"


def by_part(value: Tensor, groups: str) -> Tensor:
    """Rows [R,…] that lie head by head as they are wanted: part by part, each with its rows of all heads.

    `groups` describes blocks of rows, one behind the other: "heads:size,size,…" with the rows of
    each part in one head.
    """
    found: list[Tensor] = []
    for group, parts in (text.split(":") for text in groups.split(" ")):
        heads, sizes = int(group), [int(size) for size in parts.split(",")]
        rows = heads * sum(sizes)
        first = sum(part.shape[0] for part in found)
        block = value[first : first + rows].reshape(heads, sum(sizes), *value.shape[1:])
        found += [part.flatten(0, 1) for part in torch.split(block, sizes, 1)]
    return torch.cat(found)


def prepared(form: str, value: Tensor) -> Tensor:
    """A stored tensor, in the type that is wanted, in a form of WEIGHTS.

    "wide": as it is; "negative_exp": -exp(x); "plus_one": x + 1; "taps_first": [C,1,W] as
    [W,1,C]; "by_part …": see `by_part`.
    """
    name, _, rest = form.partition(" ")
    if name == BY_PART:
        return by_part(value, rest)
    if name == "negative_exp":
        return -value.exp()
    if name == "plus_one":
        return value + 1.0
    return value.permute(2, 1, 0).contiguous() if name == "taps_first" else value


def stored_shape(form: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a stored tensor whose prepared form has this shape."""
    return shape[::-1] if form == "taps_first" else shape
