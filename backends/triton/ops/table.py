"""Which function stands for an op in a Triton module; ops that are not listed are their reference implementations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specc.backends.printing.dialect import Variant
from specc.backends.triton.ops import cache

Function = Callable[..., Any]

FUNCTIONS: tuple[Function, ...] = (
    cache.append_rows,
    cache.append_rows_,
    cache.commit_path,
    cache.commit_path_,
)
KERNELS: Mapping[str, Function] = {function.__name__: function for function in FUNCTIONS}
NAMES: frozenset[str] = frozenset(KERNELS)


def variant(op: str, arguments: Mapping[str, Any]) -> Variant | None:
    """The function for an op that has one per schedule; None for all others."""
    return None
