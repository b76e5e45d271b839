"""Translations to ONNX in place of the exporter's own, where onnxruntime has no kernel for what that one makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def where(condition: Any, self: Any, other: Any) -> Any:
    """`aten.where.self`; of truth values by logic, as `Where` has no kernel for them."""
    from onnx_ir import DataType  # these packages are only there where the extra is installed
    from onnxscript import opset18 as op

    if self.dtype != DataType.BOOL:
        return op.Where(condition, self, other)
    return op.Or(op.And(condition, self), op.And(op.Not(condition), other))


TRANSLATIONS: Mapping[Any, Callable[..., Any]] = {torch.ops.aten.where.self: where}
