"""The functions that exported modules are printed with: those of the Ascend backend, its own operators spelled out.

They read nothing on the host, have static shapes and address no row outside its tensor, which every exporter needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specc.backends.ascend.ops.table import KERNELS, NAMES, POINTWISE, special
from specc.backends.export.ops import npu
from specc.backends.printing.dialect import Dialect

NPU: Mapping[str, Callable[..., Any]] = {
    "npu_fused_infer_attention_score": npu.npu_fused_infer_attention_score,
    "npu_rms_norm": npu.npu_rms_norm,
    "npu_rotary_mul": npu.npu_rotary_mul,
    "npu_scatter_update": npu.npu_scatter_update,
    "npu_swiglu": npu.npu_swiglu,
}


def dialect(target: str) -> Dialect:
    """The dialect of an exporter's target."""
    return Dialect(
        name=target,
        kernels={**KERNELS, **NPU},
        pointwise=POINTWISE,
        special=special,
        reserved=NAMES,
        by_layer=True,
    )
