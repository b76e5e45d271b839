"""How an op is declared: once, with everything that shapes, checks, docs and backends derive from.

`@op("name(Tensor x) -> Tensor", …)` registers `torch.ops.specc.name` through `torch.library` (schema, reference
implementation, fake) and records an `OpInfo`. FX nodes target the OpOverload, never the Python function:
FX dead-code elimination would silently drop an in-place write behind a plain function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

LIBRARY = torch.library.Library("specc", "DEF")


@dataclass(frozen=True, slots=True)
class IndexOperand:
    """An integer operand that addresses rows of another: `operand` must lie in [0, size(`into`, `dim`) + slack)."""

    operand: str
    into: str
    dim: int
    slack: int = 0


@dataclass(frozen=True, slots=True)
class OpInfo:
    """What the compiler knows of one op.

    `rows`: the operands that carry a token axis (dim 1) along which the op works row by row; the same axis is
    then dim 1 of every output. `levels`: where it may stand ("value" before plan-buffers, "buffer" after).
    `indices`: operands used as row numbers. `result_range`: name -> (low, high) hints for integer results.
    """

    name: str
    overload: torch._ops.OpOverload
    reference: Callable[..., Any]
    doc: str
    rows: frozenset[str] = frozenset()
    levels: frozenset[str] = frozenset({"value", "buffer"})
    indices: tuple[IndexOperand, ...] = ()
    mutates: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)


REGISTRY: dict[torch._ops.OpOverload, OpInfo] = {}


def op(
    schema: str,
    *,
    fake: Callable[..., Any],
    rows: tuple[str, ...] = (),
    levels: tuple[str, ...] = ("value", "buffer"),
    indices: tuple[IndexOperand, ...] = (),
    meta: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], torch._ops.OpOverload]:
    """Declare `torch.ops.specc.<name>`; the decorated function is its reference implementation.

    Returns the OpOverload, so that `rope = op(...)(def …)` can stand as an FX target directly.
    """

    def declare(reference: Callable[..., Any]) -> torch._ops.OpOverload:
        name = schema.split("(", 1)[0].strip()
        LIBRARY.define(schema)
        LIBRARY.impl(name, reference, "CompositeExplicitAutograd")
        torch.library.register_fake(f"specc::{name}", fake, lib=LIBRARY)
        overload = getattr(torch.ops.specc, name).default
        mutated = tuple(
            argument.name
            for argument in overload._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        REGISTRY[overload] = OpInfo(
            name=name,
            overload=overload,
            reference=reference,
            doc=reference.__doc__ or "",
            rows=frozenset(rows),
            levels=frozenset(levels),
            indices=indices,
            mutates=mutated,
            meta=dict(meta or {}),
        )
        return overload

    return declare


def info(target: object) -> OpInfo | None:
    """The declaration behind an FX target, or None (aten ops, getitem, loop)."""
    return REGISTRY.get(target) if isinstance(target, torch._ops.OpOverload) else None
