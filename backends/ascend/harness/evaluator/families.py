"""Imports every family, so that its ops are registered."""

from __future__ import annotations

from specc.backends.ascend.harness.evaluator import (
    attention,
    cast,
    constant,
    delta_rule,
    fused,
    gather,
    layout,
    matmul,
    moe,
    pointwise,
    reduce,
    scatter,
    select,
)

FAMILIES = (
    attention,
    cast,
    constant,
    delta_rule,
    fused,
    gather,
    layout,
    matmul,
    moe,
    pointwise,
    reduce,
    scatter,
    select,
)
