"""Index checking at run time: every index operand must lie in [0, size), negative ones included.

Eager torch wraps negative indices in some ops and raises in others; an accelerator reads whatever lies there. The
strict interpreter raises for all of them, with the op, the operand, the value and the range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specc.ir.op import OpInfo, info

_TO_THE_END = 2**63 - 1


@dataclass(slots=True, eq=False)
class IndexRangeError(Exception):
    """`operand` of `op` holds `value`, which is not in [low, high]; `node` is the IR node, where there is one."""

    op: str
    operand: str
    value: int
    low: int
    high: int
    node: str = ""

    def __str__(self) -> str:
        place = f" at `{self.node}`" if self.node else ""
        return f"{self.op}{place}: {self.operand} holds {self.value}, outside [{self.low}, {self.high}]"


Check = tuple[str, Any, int]  # operand, value (tensor or int), exclusive upper bound
Named = Mapping[str, Any]


def _along_dim(named: Named) -> Iterator[Check]:
    """Ops with `self`, `dim` and an `index` along it."""
    self = named["self"]
    yield "index", named["index"], self.shape[named["dim"]] if self.dim() else 1


def _advanced(named: Named) -> Iterator[Check]:
    """index, index_put: one entry per dim, None for all; a bool mask covers as many dims as it has."""
    self, dim = named["self"], 0
    for position, index in enumerate(named["indices"]):
        if index is None:
            dim += 1
        elif index.dtype in (torch.bool, torch.uint8):
            dim += index.dim()
        else:
            yield f"indices[{position}]", index, self.shape[dim]
            dim += 1


def _slice(named: Named) -> Iterator[Check]:
    size = named["self"].shape[named.get("dim", 0)]
    for operand in ("start", "end"):
        value = named.get(operand)
        if value is not None and value != _TO_THE_END:
            yield operand, value, size + 1


def _narrow(named: Named) -> Iterator[Check]:
    size = named["self"].shape[named["dim"]]
    start = int(named["start"])
    yield "start", start, size + 1
    yield "length", named["length"], size - start + 1


def _take_along(named: Named) -> Iterator[Check]:
    self, dim = named["self"], named.get("dim")
    yield "indices", named["indices"], self.numel() if dim is None else self.shape[dim]


_CHECKS: dict[str, Callable[[Named], Iterator[Check]]] = dict.fromkeys(
    (
        *("gather", "index_select", "select", "select_scatter", "index_copy", "index_add", "index_fill"),
        *("index_reduce", "scatter", "scatter_add", "scatter_reduce"),
    ),
    _along_dim,
)
_CHECKS |= {
    "index": _advanced,
    "index_put": _advanced,
    "_unsafe_index": _advanced,
    "_unsafe_index_put": _advanced,
    "slice": _slice,
    "slice_scatter": _slice,
    "narrow": _narrow,
    "narrow_copy": _narrow,
    "take_along_dim": _take_along,
    "take": lambda named: iter([("index", named["index"], named["self"].numel())]),
    "put": lambda named: iter([("index", named["index"], named["self"].numel())]),
    "embedding": lambda named: iter([("indices", named["indices"], named["weight"].shape[0])]),
    "embedding_bag": lambda named: iter([("indices", named["indices"], named["weight"].shape[0])]),
}


def _declared(declared: OpInfo, named: Named) -> Iterator[Check]:
    for item in declared.indices:
        if named[item.operand] is not None:
            yield item.operand, named[item.operand], named[item.into].shape[item.dim] + item.slack


@cache
def _signature(
    target: torch._ops.OpOverload,
) -> tuple[tuple[str, ...], dict[str, Any], Callable[[Named], Iterator[Check]]] | None:
    """(parameter names, their defaults, the checks of a call) of an op that indexes; None for others."""
    name = target._schema.name.split("::")[-1]
    declared = info(target)
    checks = _CHECKS.get(name.removesuffix("_")) if declared is None else partial(_declared, declared)
    if checks is None or (declared is not None and not declared.indices):
        return None
    parameters = tuple(argument.name for argument in target._schema.arguments)
    return parameters, {argument.name: argument.default_value for argument in target._schema.arguments}, checks


def check_indices(
    target: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], node: str = ""
) -> None:
    """Raise IndexRangeError where an index operand of this call is negative or too large."""
    found = _signature(target)
    if found is None:
        return
    parameters, defaults, checks = found
    named = defaults | dict(zip(parameters, args, strict=False)) | dict(kwargs)
    for operand, value, bound in checks(named):
        _check(target, operand, value, bound, node)


def _check(op: torch._ops.OpOverload, operand: str, value: Any, bound: int, node: str) -> None:
    if isinstance(value, torch.Tensor):
        if value.numel() == 0:
            return
        low, high = (int(item) for item in torch.aminmax(value))
    else:
        low = high = int(value)
    if low < 0 or high >= bound:
        raise IndexRangeError(str(op), operand, low if low < 0 else high, 0, bound - 1, node)


class StrictMode(TorchDispatchMode):
    """Checks every aten call inside: for nodes of a user's graph that are Python functions or methods."""

    def __init__(self, node: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.node = node

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        check_indices(func, args, kwargs or {}, self.node)
        return func(*args, **(kwargs or {}))
