"""CPU kernels for the `npu::` operators that generated modules call: `register()` lets such a module run eagerly.

The semantics are the documented ones (`semantics/`); where the documentation leaves a result undefined the kernel
raises IndexError or ValueError. A real torch_npu keeps its schemas and meta functions: only what is missing is
defined. `torch.ops.air.npu_fused_infer_attention_score` (the form whose lengths are tensors, which torchair
declares when its module is imported) is declared here too as long as torchair is not loaded.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache

from torch.library import Library

from specc.backends.ascend import schemas
from specc.backends.ascend.semantics.calls import CPU_KERNELS, fused_infer_attention_score
from specc.backends.ascend.semantics.shapes import META_KERNELS

TENSOR_LENGTHS = "npu_fused_infer_attention_score"


@dataclass(slots=True)
class _Registered:
    """The libraries that hold our registrations; dropping one takes its registrations back."""

    kernels: Library | None = None
    meta: Library | None = None
    air: Library | None = None


@cache
def _registered() -> _Registered:
    return _Registered()


def register() -> None:
    """Make `torch.ops.npu.*` of CPU_KERNELS, and the tensor-length attention of `torch.ops.air`, run on the CPU.

    Calling it again changes nothing. Raises nothing; an operator without a CPU kernel stays without one.
    """
    state = _registered()
    if state.kernels is not None:
        return
    schemas.define(CPU_KERNELS)
    state.kernels = Library("npu", "IMPL", "CPU")
    for name, kernel in CPU_KERNELS.items():
        state.kernels.impl(name, kernel)
    state.meta = Library("npu", "IMPL", "Meta")
    for name, kernel in META_KERNELS.items():
        if not schemas.has_kernel(f"npu::{name}", "Meta"):
            state.meta.impl(name, kernel)
    _register_air(state)


def _register_air(state: _Registered) -> None:
    """The operator with tensor lengths: declared if torchair has not, its CPU kernel ours in any case."""
    library = Library("air", "FRAGMENT")
    ours = not schemas.is_defined(f"air::{TENSOR_LENGTHS}")
    if ours:
        library.define(schemas.air_schema())
        library.impl(TENSOR_LENGTHS, META_KERNELS[TENSOR_LENGTHS], "Meta")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchair's CPU kernel, which only raises, is replaced
        library.impl(TENSOR_LENGTHS, fused_infer_attention_score, "CPU")
    state.air = library


def make_room_for_torchair() -> None:
    """Take back what the wheel's own files are about to register: meta functions and `air::` operators."""
    state = _registered()
    for library in (state.meta, state.air):
        if library is not None:
            library._destroy()
    state.meta = state.air = None


def refresh() -> None:
    """After torchair has been loaded: our CPU kernel for its tensor-length attention, if we are registered."""
    state = _registered()
    if state.kernels is not None and state.air is None:
        _register_air(state)
